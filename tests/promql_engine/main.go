// Command promqlengine evaluates queries with the engine of Prometheus 3, over the samples that it is given: the first
// line of the input has the series, each further line a query. It answers with a line for each query. Only for tests.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
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

type inputSeries struct {
	Labels  map[string]string `json:"labels"`
	Samples [][2]float64      `json:"samples"`
}

type query struct {
	Query      string `json:"query"`
	StartMs    int64  `json:"start_ms"`
	EndMs      int64  `json:"end_ms"`
	StepMs     int64  `json:"step_ms"`
	LookbackMs int64  `json:"lookback_ms"`
}

type outputSeries struct {
	Labels  map[string]string `json:"labels"`
	Samples [][2]string       `json:"samples"`
}

type answer struct {
	Type   string         `json:"type,omitempty"`
	Series []outputSeries `json:"series,omitempty"`
	Text   string         `json:"text,omitempty"`
	Error  string         `json:"error,omitempty"`
}

type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                    { return s.t }
func (s sample) F() float64                  { return s.v }
func (sample) ST() int64                     { return 0 }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

type store []storage.Series

func (s store) Querier(_, _ int64) (storage.Querier, error) { return s, nil }
func (store) Close() error                                  { return nil }
func (store) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}
func (store) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s store) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &found{at: -1}
next:
	for _, series := range s {
		for _, m := range matchers {
			if !m.Matches(series.Labels().Get(m.Name)) {
				continue next
			}
		}
		set.series = append(set.series, series)
	}
	return set
}

type found struct {
	series []storage.Series
	at     int
}

func (f *found) Next() bool                      { f.at++; return f.at < len(f.series) }
func (f *found) At() storage.Series              { return f.series[f.at] }
func (*found) Err() error                        { return nil }
func (*found) Warnings() annotations.Annotations { return nil }

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	default:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
}

func point(t int64, v float64) [2]string { return [2]string{strconv.FormatInt(t, 10), number(v)} }

func run(engine *promql.Engine, s store, q query) answer {
	opts := promql.NewPrometheusQueryOpts(false, time.Duration(q.LookbackMs)*time.Millisecond)
	var qry promql.Query
	var err error
	start, end := time.UnixMilli(q.StartMs), time.UnixMilli(q.EndMs)
	if q.StepMs == 0 {
		qry, err = engine.NewInstantQuery(context.Background(), s, opts, q.Query, start)
	} else {
		qry, err = engine.NewRangeQuery(context.Background(), s, opts, q.Query, start, end, time.Duration(q.StepMs)*time.Millisecond)
	}
	if err != nil {
		return answer{Error: "parse: " + err.Error()}
	}
	defer qry.Close()
	res := qry.Exec(context.Background())
	if res.Err != nil {
		return answer{Error: "exec: " + res.Err.Error()}
	}
	a := answer{Type: string(res.Value.Type())}
	switch v := res.Value.(type) {
	case promql.Vector:
		for _, s := range v {
			a.Series = append(a.Series, outputSeries{s.Metric.Map(), [][2]string{point(s.T, s.F)}})
		}
	case promql.Matrix:
		for _, s := range v {
			o := outputSeries{Labels: s.Metric.Map()}
			for _, p := range s.Floats {
				o.Samples = append(o.Samples, point(p.T, p.F))
			}
			a.Series = append(a.Series, o)
		}
	case promql.Scalar:
		a.Series = []outputSeries{{map[string]string{}, [][2]string{point(v.T, v.V)}}}
	case promql.String:
		a.Text = v.V
	}
	return a
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(in)
	var inputs []inputSeries
	if err := decoder.Decode(&inputs); err != nil {
		fmt.Fprintln(os.Stderr, "series:", err)
		os.Exit(1)
	}
	var all store
	for _, input := range inputs {
		var samples []chunks.Sample
		for _, p := range input.Samples {
			samples = append(samples, sample{int64(p[0]), p[1]})
		}
		all = append(all, storage.NewListSeries(labels.FromMap(input.Labels), samples))
	}
	sort.Slice(all, func(i, j int) bool { return labels.Compare(all[i].Labels(), all[j].Labels()) < 0 })
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:               50_000_000,
		Timeout:                  time.Minute,
		LookbackDelta:            5 * time.Minute,
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 },
		Parser:                   parser.NewParser(parser.Options{EnableExperimentalFunctions: true, EnableBinopFillModifiers: true}),
	})
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for {
		var q query
		if err := decoder.Decode(&q); err != nil {
			return
		}
		if err := encoder.Encode(run(engine, all, q)); err != nil {
			os.Exit(1)
		}
		out.Flush()
	}
}
