// Serves a recording as a Prometheus does, with Prometheus' own engine, beside the dashboards and the page that draws them.
//
//	serve RECORDING PAGE-FOLDER DASHBOARDS-FOLDER
//
// Prints its address. Recorded time begins at the epoch: /recording says which scene begins when.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql"
	"go.yaml.in/yaml/v2"

	"gpunode.dev/tests/monitoring/memory"
)

type recording struct {
	Interval int            `yaml:"interval"`
	Scenes   map[string]int `yaml:"scenes"`
	Pods     map[string]struct {
		Node   string            `yaml:"node"`
		Series map[string]string `yaml:"series"`
	} `yaml:"pods"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: serve RECORDING PAGE-FOLDER DASHBOARDS-FOLDER")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var recorded recording
	if err := yaml.Unmarshal(text, &recorded); err != nil {
		return fmt.Errorf("read %s: %w", os.Args[1], err)
	}
	var series memory.Series
	if err := recorded.addTo(&series); err != nil {
		return err
	}
	engine := memory.Engine()
	answer := func(answer http.ResponseWriter, query promql.Query, err error) {
		answer.Header().Set("Content-Type", "application/json")
		if err == nil {
			defer query.Close()
			result := query.Exec(context.Background())
			if err = result.Err; err == nil {
				value := map[string]any{"resultType": result.Value.Type(), "result": result.Value}
				if result.Value.String() == "" {
					value["result"] = []any{}
				}
				json.NewEncoder(answer).Encode(map[string]any{"status": "success", "data": value})
				return
			}
		}
		answer.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(answer).Encode(map[string]any{"status": "error", "error": err.Error()})
	}
	seconds := func(request *http.Request, name string) time.Time {
		number, _ := strconv.ParseInt(request.FormValue(name), 10, 64)
		return time.Unix(number, 0)
	}
	http.HandleFunc("/api/v1/query", func(writer http.ResponseWriter, request *http.Request) {
		query, err := engine.NewInstantQuery(request.Context(), &series, nil, request.FormValue("query"), seconds(request, "time"))
		answer(writer, query, err)
	})
	http.HandleFunc("/api/v1/query_range", func(writer http.ResponseWriter, request *http.Request) {
		step, err := time.ParseDuration(request.FormValue("step") + "s")
		if err != nil || step <= 0 {
			http.Error(writer, "no step", http.StatusBadRequest)
			return
		}
		query, err := engine.NewRangeQuery(request.Context(), &series, nil, request.FormValue("query"), seconds(request, "start"), seconds(request, "end"), step)
		answer(writer, query, err)
	})
	http.HandleFunc("/recording", func(writer http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(writer).Encode(map[string]any{"interval": recorded.Interval, "scenes": recorded.Scenes, "length": recorded.length()})
	})
	http.Handle("/dashboards/", http.StripPrefix("/dashboards/", http.FileServer(http.Dir(os.Args[3]))))
	http.Handle("/", http.FileServer(http.Dir(os.Args[2])))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, nil)
}

// Adds all series with the labels of their targets. A label of the metric comes before that of the target: `honorLabels`.
func (r recording) addTo(all *memory.Series) error {
	for pod, recorded := range r.Pods {
		target := [][2]string{{"job", "gpunode-system/gpunode"}, {"namespace", "gpunode-system"}, {"node", recorded.Node}, {"pod", pod}}
		for series, values := range recorded.Series {
			name, own, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
			var labels []string
			for _, label := range target {
				if !strings.Contains(","+own, ","+label[0]+`="`) {
					labels = append(labels, fmt.Sprintf("%s=%q", label[0], label[1]))
				}
			}
			if own != "" {
				labels = append(labels, own)
			}
			if err := all.Add(fmt.Sprintf("%s{%s}", name, strings.Join(labels, ",")), values, time.Duration(r.Interval)*time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// Seconds from the first scrape to the last.
func (r recording) length() int {
	longest := 0
	for _, pod := range r.Pods {
		count := 0
		for _, part := range strings.Fields(pod.Series["up"]) {
			value, times, repeated := strings.Cut(part, "x")
			number, _ := strconv.Atoi(times)
			switch {
			case repeated && value == "_":
				count += number
			case repeated:
				count += number + 1
			default:
				count++
			}
		}
		longest = max(longest, count)
	}
	return (longest - 1) * r.Interval
}
