// Command web answers HTTP requests with its own name and the client's address, and asks others for theirs.
//
//	web serve [ADDRESS]         listen (default :8080); /bytes?count=N answers with N bytes
//	web ask COUNT URL           ask so many times, each by a new connection; print who answered, and errors
//	web hold COUNT SECONDS URL  keep so many connections busy, a request every 50 ms each; print
//	                            "held" when all have had an answer, and at the end what broke
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

type answer struct {
	Pod    string `json:"pod"`
	Source string `json:"source"`
}

// result is what ask and hold print: answers by Pod, errors by text, the longest wait for an answer in seconds.
type result struct {
	Answers map[string]int `json:"answers"`
	Sources map[string]int `json:"sources"`
	Errors  map[string]int `json:"errors"`
	Longest float64        `json:"longest"`
	mutex   sync.Mutex
}

func (r *result) add(found answer, err error, took time.Duration) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err != nil {
		r.Errors[err.Error()]++
	} else {
		r.Answers[found.Pod]++
		r.Sources[found.Source]++
	}
	r.Longest = max(r.Longest, took.Seconds())
}

func ask(client *http.Client, url string) (found answer, err error) {
	response, err := client.Get(url)
	if err != nil {
		return found, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(response.Body).Decode(&found)
	_, _ = io.Copy(io.Discard, response.Body)
	return found, err
}

func serve(address string) error {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		source, _, _ := net.SplitHostPort(r.RemoteAddr)
		_ = json.NewEncoder(w).Encode(answer{Pod: name, Source: source})
	})
	http.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.URL.Query().Get("count"))
		_, _ = w.Write(make([]byte, min(max(count, 0), 1<<28)))
	})
	return http.ListenAndServe(address, nil)
}

// busy uses one connection until the time is over; a connection that breaks is counted and not made again.
func busy(url string, until time.Time, all *result, first func()) {
	transport := &http.Transport{MaxConnsPerHost: 1, DisableKeepAlives: false}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for time.Now().Before(until) {
		began := time.Now()
		found, err := ask(client, url)
		all.add(found, err, time.Since(began))
		first()
		if err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	arguments := append(os.Args[1:], "", "", "", "")
	all := &result{Answers: map[string]int{}, Sources: map[string]int{}, Errors: map[string]int{}}
	count, _ := strconv.Atoi(arguments[1])
	switch arguments[0] {
	case "serve":
		address := arguments[1]
		if address == "" {
			address = ":8080"
		}
		fmt.Fprintln(os.Stderr, serve(address))
		os.Exit(1)
	case "ask":
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 3 * time.Second}
		for range count {
			began := time.Now()
			found, err := ask(client, arguments[2])
			all.add(found, err, time.Since(began))
		}
	case "hold":
		seconds, _ := strconv.Atoi(arguments[2])
		until := time.Now().Add(time.Duration(seconds) * time.Second)
		var group, held sync.WaitGroup
		held.Add(count)
		for range count {
			group.Go(func() { busy(arguments[3], until, all, sync.OnceFunc(held.Done)) })
		}
		held.Wait()
		fmt.Println("held")
		group.Wait()
	default:
		fmt.Fprintln(os.Stderr, "web serve [ADDRESS] | ask COUNT URL | hold COUNT SECONDS URL")
		os.Exit(2)
	}
	_ = json.NewEncoder(os.Stdout).Encode(all)
}
