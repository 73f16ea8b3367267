// Command web answers HTTP requests and datagrams with its own name and the client's address, and asks others for theirs.
//
//	web serve [ADDRESS]       listen (default :8080); /bytes?count=N answers with N bytes; a datagram is sent back;
//	                          /ready says so until somebody asks for /unready
//	web ask COUNT URL         ask so many times, each by a new connection
//	web hold COUNT URL        keep so many connections busy, a request every 50 ms each, until standard input ends
//	web send RATE ADDRESS     send so many datagrams a second, until standard input ends
//	web fetch URL             count the bytes of one answer
//
// hold and send print "held" when the first answers have come. All print what they counted at the end, as JSON.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type answer struct {
	Pod    string `json:"pod"`
	Source string `json:"source"`
}

// result is what all print: answers by Pod and by source address seen there, errors by text, bytes, datagrams that were
// sent and answered, and the longest wait for an answer in seconds.
type result struct {
	Answers  map[string]int `json:"answers"`
	Sources  map[string]int `json:"sources"`
	Errors   map[string]int `json:"errors"`
	Bytes    int64          `json:"bytes"`
	Sent     int            `json:"sent"`
	Returned int            `json:"returned"`
	Longest  float64        `json:"longest"`
	mutex    sync.Mutex
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
	var unready atomic.Bool
	http.HandleFunc("/unready", func(http.ResponseWriter, *http.Request) { unready.Store(true) })
	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if unready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.URL.Query().Get("count"))
		_, _ = w.Write(make([]byte, min(max(count, 0), 1<<28)))
	})
	datagrams, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() {
		data := make([]byte, 1<<16)
		for {
			if count, from, err := datagrams.ReadFrom(data); err == nil {
				_, _ = datagrams.WriteTo(data[:count], from)
			}
		}
	}()
	return http.ListenAndServe(address, nil)
}

// busy uses one connection until it is told to stop; one that breaks is counted and not made again.
func busy(url string, stop <-chan struct{}, all *result, first func()) {
	defer first()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 30 * time.Second}
	for {
		began := time.Now()
		found, err := ask(client, url)
		all.add(found, err, time.Since(began))
		first()
		if err != nil {
			return
		}
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// send sends numbered datagrams; the longest wait is the longest time without an answer.
func send(rate int, address string, stop <-chan struct{}, all *result, first func()) error {
	connection, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	var done sync.WaitGroup
	done.Go(func() {
		data, last := make([]byte, 64), time.Now()
		for {
			if _, err := connection.Read(data); err != nil {
				if netError, ok := err.(net.Error); ok && netError.Timeout() {
					return
				}
				continue // a port that is closed for a while: the next datagram asks again
			}
			all.mutex.Lock()
			all.Returned++
			all.Longest, last = max(all.Longest, time.Since(last).Seconds()), time.Now()
			all.mutex.Unlock()
			first()
		}
	})
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for number := uint64(0); ; number++ {
		select {
		case <-stop:
			_ = connection.SetReadDeadline(time.Now().Add(time.Second)) // what is still under way
			done.Wait()
			return connection.Close()
		case <-ticker.C:
			all.mutex.Lock()
			all.Sent++
			all.mutex.Unlock()
			_, _ = connection.Write(binary.BigEndian.AppendUint64(nil, number))
		}
	}
}

func main() {
	arguments := append(os.Args[1:], "", "", "")
	all := &result{Answers: map[string]int{}, Sources: map[string]int{}, Errors: map[string]int{}}
	count, _ := strconv.Atoi(arguments[1])
	stop := make(chan struct{})
	untilInputEnds := func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}
	var group, held sync.WaitGroup
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
	case "fetch":
		began := time.Now()
		response, err := (&http.Client{Timeout: 20 * time.Second}).Get(arguments[1])
		if err == nil {
			all.Bytes, err = io.Copy(io.Discard, response.Body)
		}
		all.add(answer{}, err, time.Since(began))
	case "hold":
		go untilInputEnds()
		held.Add(count)
		for range count {
			group.Go(func() { busy(arguments[2], stop, all, sync.OnceFunc(held.Done)) })
		}
		held.Wait()
		fmt.Println("held")
		group.Wait()
	case "send":
		go untilInputEnds()
		if err := send(count, arguments[2], stop, all, sync.OnceFunc(func() { fmt.Println("held") })); err != nil {
			all.Errors[err.Error()]++
		}
	default:
		fmt.Fprintln(os.Stderr, "web serve [ADDRESS] | ask COUNT URL | hold COUNT URL | send RATE ADDRESS | fetch URL")
		os.Exit(2)
	}
	_ = json.NewEncoder(os.Stdout).Encode(all)
}
