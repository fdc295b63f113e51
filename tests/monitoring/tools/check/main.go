// Checks rules and metrics as promtool does, with the same arguments, and compiles in a fraction of its time: it has the engine of
// Prometheus, but neither its storage nor its clients for clouds and Kubernetes. `make soak` runs the same checks with promtool.
//
//	check check rules FILE
//	check check metrics < TEXT
//	check test rules FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"go.yaml.in/yaml/v2"

	"gpunode.dev/tests/monitoring/memory"
)

// What the tests use of promtool's format.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string         `yaml:"name"`
		Interval    model.Duration `yaml:"interval"`
		InputSeries []struct {
			Series string `yaml:"series"`
			Values string `yaml:"values"`
		} `yaml:"input_series"`
		PromqlExprTest []struct {
			Expr       string         `yaml:"expr"`
			EvalTime   model.Duration `yaml:"eval_time"`
			ExpSamples []struct {
				Labels string  `yaml:"labels"`
				Value  float64 `yaml:"value"`
			} `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	} `yaml:"tests"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	var words []string
	for _, argument := range arguments {
		// Lints are all on.
		if !strings.HasPrefix(argument, "--lint") {
			words = append(words, argument)
		}
	}
	switch {
	case len(words) == 3 && words[0] == "check" && words[1] == "rules":
		_, err := rules(words[2])
		return err
	case len(words) == 2 && words[0] == "check" && words[1] == "metrics":
		problems, err := promlint.New(os.Stdin).Lint()
		for _, problem := range problems {
			err = errors.Join(err, fmt.Errorf("%s %s", problem.Metric, problem.Text))
		}
		return err
	case len(words) == 3 && words[0] == "test" && words[1] == "rules":
		return test(words[2])
	}
	return fmt.Errorf("no such command: %v", arguments)
}

func rules(file string) ([]rulefmt.Rule, error) {
	groups, problems := rulefmt.ParseFile(file, false, model.UTF8Validation, memory.Parser, slog.New(slog.DiscardHandler))
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	var all []rulefmt.Rule
	seen := map[string]bool{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || seen[rule.Alert] {
				return nil, fmt.Errorf("no alert, or one twice: %q", rule.Alert)
			}
			seen[rule.Alert] = true
			all = append(all, rule)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no rule in %s", file)
	}
	return all, nil
}

func test(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var tests testFile
	if err := yaml.UnmarshalStrict(text, &tests); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	var all []rulefmt.Rule
	for _, name := range tests.RuleFiles {
		found, err := rules(filepath.Join(filepath.Dir(file), name))
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	var failures []error
	for _, test := range tests.Tests {
		var series memory.Series
		for _, input := range test.InputSeries {
			if err := series.Add(input.Series, input.Values, time.Duration(test.Interval)); err != nil {
				return fmt.Errorf("%s: %w", test.Name, err)
			}
		}
		for _, query := range test.PromqlExprTest {
			matchers, err := memory.Parser.ParseMetricSelector(query.Expr)
			if err != nil {
				return fmt.Errorf("%s: %s is no selector of ALERTS: %w", test.Name, query.Expr, err)
			}
			var expected []string
			for _, sample := range query.ExpSamples {
				metric, err := memory.Parser.ParseMetric(sample.Labels)
				if err != nil {
					return fmt.Errorf("%s: %w", test.Name, err)
				}
				expected = append(expected, fmt.Sprintf("%s %v", metric, sample.Value))
			}
			sort.Strings(expected)
			found, err := alerts(all, &series, time.Duration(tests.EvaluationInterval), time.Duration(query.EvalTime), matchers)
			if err != nil {
				return fmt.Errorf("%s: %w", test.Name, err)
			}
			if strings.Join(found, "\n") != strings.Join(expected, "\n") {
				failures = append(failures, fmt.Errorf("%s, at %s:\nexpected %q\n     got %q", test.Name, query.EvalTime, expected, found))
			}
		}
	}
	return errors.Join(failures...)
}

// Series of ALERTS at one moment, by evaluating all rules from time 0 on.
func alerts(rules []rulefmt.Rule, series *memory.Series, every, end time.Duration, matchers []*labels.Matcher) ([]string, error) {
	engine := memory.Engine()
	var found []string
	for _, rule := range rules {
		// One that the selector leaves out in any case.
		probe := labels.FromStrings(labels.MetricName, "ALERTS", "alertname", rule.Alert)
		if !memory.Matches(probe, named(matchers, labels.MetricName, "alertname")) {
			continue
		}
		query, err := engine.NewRangeQuery(context.Background(), series, nil, rule.Expr, time.Unix(0, 0), time.Unix(0, 0).Add(end), every)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rule.Alert, err)
		}
		matrix, err := query.Exec(context.Background()).Matrix()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rule.Alert, err)
		}
		for _, alert := range matrix {
			since, active := activeSince(alert, every, end)
			if !active {
				continue
			}
			state := "pending"
			if end-since >= time.Duration(rule.For) {
				state = "firing"
			}
			builder := labels.NewBuilder(alert.Metric)
			builder.Set(labels.MetricName, "ALERTS").Set("alertname", rule.Alert).Set("alertstate", state)
			for name, value := range rule.Labels {
				builder.Set(name, value)
			}
			if metric := builder.Labels(); memory.Matches(metric, matchers) {
				found = append(found, metric.String()+" 1")
			}
		}
		query.Close()
	}
	sort.Strings(found)
	return found, nil
}

// Time since which a series has had a value at each evaluation up to the end.
func activeSince(alert promql.Series, every, end time.Duration) (time.Duration, bool) {
	at := end - end%every
	since, active := time.Duration(0), false
	for index := len(alert.Floats) - 1; index >= 0; index-- {
		if time.Duration(alert.Floats[index].T)*time.Millisecond != at {
			break
		}
		since, active = at, true
		at -= every
	}
	return since, active
}

func named(matchers []*labels.Matcher, names ...string) []*labels.Matcher {
	var found []*labels.Matcher
	for _, matcher := range matchers {
		for _, name := range names {
			if matcher.Name == name {
				found = append(found, matcher)
			}
		}
	}
	return found
}
