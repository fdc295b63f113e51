package main

import (
	"fmt"
	"os"
	"reflect"
	"text/tabwriter"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// checker compares answers with expectations and keeps the differences.
type checker struct {
	compared    int
	differences [][3]string
}

// equal compares one answer.
func (c *checker) equal(call string, got, want any) {
	c.compared++
	if !reflect.DeepEqual(got, want) {
		c.differences = append(c.differences, [3]string{call, fmt.Sprint(want), fmt.Sprint(got)})
	}
}

// ret compares a return code, and tells whether it was the expected one.
func (c *checker) ret(call string, got, want nvml.Return) bool {
	c.equal(call, got.Error(), want.Error())
	return got == want
}

// report prints the differences and a summary, and returns the exit status.
func (c *checker) report(name string) int {
	if len(c.differences) > 0 {
		table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "CALL\tEXPECTED\tGOT")
		for _, row := range c.differences {
			fmt.Fprintf(table, "%s\t%s\t%s\n", row[0], row[1], row[2])
		}
		table.Flush()
	}
	fmt.Printf("%s: %d answers compared, %d differ\n", name, c.compared, len(c.differences))
	if len(c.differences) > 0 {
		return 1
	}
	return 0
}
