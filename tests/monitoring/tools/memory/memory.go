// Package memory holds the series of a test or a recording for Prometheus' query engine.
package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// Parser is Prometheus' parser with its default options.
var Parser = parser.NewParser(parser.Options{})

// Series are all samples that queries see.
type Series struct{ all []storage.Series }

// Add takes values in the notation of Prometheus' tests, the first one at time 0.
func (s *Series) Add(series, values string, interval time.Duration) error {
	metric, sequence, err := Parser.ParseSeriesDesc(series + " " + values)
	if err != nil {
		return fmt.Errorf("read %s: %w", series, err)
	}
	var samples []chunks.Sample
	for at, value := range sequence {
		if !value.Omitted {
			samples = append(samples, sample{int64(at) * interval.Milliseconds(), value.Value})
		}
	}
	s.all = append(s.all, storage.NewListSeries(metric, samples))
	return nil
}

// Engine returns a query engine with the limits of Prometheus' defaults.
func Engine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples:           50_000_000,
		Timeout:              time.Minute,
		LookbackDelta:        5 * time.Minute,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               Parser,
		NoStepSubqueryIntervalFn: func(int64) int64 {
			return time.Minute.Milliseconds()
		},
	})
}

// Querier implements storage.Queryable.
func (s *Series) Querier(mint, maxt int64) (storage.Querier, error) {
	return querier{s, mint, maxt}, nil
}

type querier struct {
	series     *Series
	mint, maxt int64
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, series := range q.series.all {
		if Matches(series.Labels(), matchers) {
			found = append(found, series)
		}
	}
	return &set{found, -1}
}

// Matches says if a series has what all matchers want.
func Matches(metric labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(metric.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, fmt.Errorf("no labels here")
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, fmt.Errorf("no labels here")
}

func (querier) Close() error { return nil }

type set struct {
	found []storage.Series
	at    int
}

func (s *set) Next() bool                      { s.at++; return s.at < len(s.found) }
func (s *set) At() storage.Series              { return s.found[s.at] }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                    { return s.at }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }
