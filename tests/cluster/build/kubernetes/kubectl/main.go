// kubectl, a program of its own: tests run it thousands of times, and one with all of
// Kubernetes in it needs twice as long until it has begun.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
}
