// Asks a server with the official Go client of Prometheus' API and prints each answer as a line of JSON. For tests only:
// tests/servers/promql_clients.rs builds, runs and checks it.
//
//	promqlclient URL START END, where the times are seconds since 1970
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
)

func at(text string) time.Time {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		fail(err)
	}
	return time.Unix(seconds, 0)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func print(what string, answer any, err error) {
	line := map[string]any{"what": what, "answer": answer}
	if err != nil {
		line["error"] = err.Error()
		if apiError, ok := err.(*v1.Error); ok {
			line["type"] = apiError.Type
		}
	}
	text, err := json.Marshal(line)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(text))
}

func main() {
	if len(os.Args) != 4 {
		fail(fmt.Errorf("usage: promqlclient URL START END"))
	}
	client, err := api.NewClient(api.Config{Address: os.Args[1]})
	if err != nil {
		fail(err)
	}
	start, end := at(os.Args[2]), at(os.Args[3])
	prometheus := v1.NewAPI(client)
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	vector, warnings, err := prometheus.Query(within, `temp{site="north"}`, start)
	print("query", vector, err)
	print("query warnings", warnings, nil)
	scalar, _, err := prometheus.Query(within, "1 + 1", start)
	print("scalar", scalar, err)
	window := v1.Range{Start: start, End: end, Step: time.Hour}
	matrix, _, err := prometheus.QueryRange(within, "sum by (site) (avg_over_time(temp[1h]))", window)
	print("query_range", matrix, err)
	_, _, err = prometheus.Query(within, "sum(", start)
	print("bad query", nil, err)
	_, _, err = prometheus.Query(within, "info(temp)", start)
	print("unsupported", nil, err)
	series, _, err := prometheus.Series(within, []string{"temp"}, start, end)
	print("series", series, err)
	_, warnings, err = prometheus.Series(within, []string{"temp"}, start, end, v1.WithLimit(1))
	print("limited series", warnings, err)
	names, _, err := prometheus.LabelNames(within, nil, start, end)
	print("labels", names, err)
	values, _, err := prometheus.LabelValues(within, "sensor_id", []string{`temp{site="south"}`}, start, end)
	print("label values", values, err)
	fields, _, err := prometheus.LabelValues(within, "__name__", nil, start, end)
	print("fields", fields, err)
	metadata, err := prometheus.Metadata(within, "temp", "")
	print("metadata", metadata, err)
	info, err := prometheus.Buildinfo(within)
	print("buildinfo", info, err)
}
