// Command nethttp asks a server for everything that the end-to-end tests want to see done by Go's own client, in HTTP/2 over TLS, and
// says "ok".
//
//	nethttp https://shop.example:8443 127.0.0.1:8443 ca.pem
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const large = 3 << 20

func main() {
	base, address, ca := os.Args[1], os.Args[2], os.Args[3]
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	var connections sync.Map
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				connections.Store(connection.LocalAddr().String(), true)
			}
			return connection, err
		},
	}
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	site := site{client, base}
	site.bodies()
	site.heads()
	site.trailers()
	site.early()
	site.turns()
	site.cancelled()
	site.together()
	count := 0
	connections.Range(func(any, any) bool { count++; return true })
	if count != 1 {
		fail("%d connections", count)
	}
	fmt.Println("ok")
}

type site struct {
	client *http.Client
	base   string
}

func (s site) ask(method, path string, body io.Reader) *http.Response {
	request, err := http.NewRequest(method, s.base+path, body)
	check(err)
	return s.do(request)
}

func (s site) do(request *http.Request) *http.Response {
	response, err := s.client.Do(request)
	check(err)
	if response.ProtoMajor != 2 {
		fail("%s %s: answered in %s", request.Method, request.URL, response.Proto)
	}
	return response
}

func content(response *http.Response) []byte {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(err)
	return body
}

func noise(length int) []byte {
	body := make([]byte, length)
	rand.New(rand.NewSource(int64(length))).Read(body)
	return body
}

// bodies sends some of known length, which Go may send again, and some of unknown length.
func (s site) bodies() {
	for _, length := range []int{0, 1, 65535, 65536, large} {
		body := noise(length)
		if got := content(s.ask("POST", "/echo", bytes.NewReader(body))); !bytes.Equal(got, body) {
			fail("%d bytes came back as %d others", length, len(got))
		}
		if got := content(s.ask("PUT", "/echo", struct{ io.Reader }{bytes.NewReader(body)})); !bytes.Equal(got, body) {
			fail("%d bytes of unknown length came back as %d others", length, len(got))
		}
		if got := content(s.ask("GET", fmt.Sprintf("/bytes/%d", length), nil)); len(got) != length {
			fail("%d bytes instead of %d", len(got), length)
		}
	}
	response := s.ask("GET", "/unknown", nil)
	if got := content(response); string(got) != "one two three" || response.ContentLength != -1 {
		fail("unknown length: %q %d", got, response.ContentLength)
	}
}

func (s site) heads() {
	response := s.ask("HEAD", "/bytes/70000", nil)
	if got := content(response); len(got) != 0 || response.ContentLength != 70000 {
		fail("HEAD: %d bytes, length %d", len(got), response.ContentLength)
	}
	// Uncompressed by Go where it asked for it by itself; here nobody compresses.
	if response.Uncompressed {
		fail("HEAD: uncompressed")
	}
	request, err := http.NewRequest("GET", s.base+"/hello", nil)
	check(err)
	request.Header.Set("x-large", strings.Repeat("v", 12000))
	if response := s.do(request); response.StatusCode != 200 || string(content(response)) != "hello" {
		fail("large head: %s", response.Status)
	}
}

func (s site) trailers() {
	request, err := http.NewRequest("POST", s.base+"/echo", io.NopCloser(strings.NewReader("body")))
	check(err)
	request.Header.Set("te", "trailers")
	request.Trailer = http.Header{"X-Sum": {"42"}}
	response := s.do(request)
	if got := content(response); string(got) != "body" || response.Trailer.Get("x-sum") != "42" {
		fail("trailers: %q %v", got, response.Trailer)
	}
}

// early is answered while there is still something to send, or nothing was sent yet.
func (s site) early() {
	response := s.ask("POST", "/early", bytes.NewReader(noise(large)))
	if got := content(response); response.StatusCode != 403 || string(got) != "not for you" {
		fail("early: %s %q", response.Status, got)
	}
	reader, writer := io.Pipe()
	response = s.ask("POST", "/early", reader)
	if got := content(response); response.StatusCode != 403 || string(got) != "not for you" {
		fail("early, nothing sent: %s %q", response.Status, got)
	}
	writer.Close()
	request, err := http.NewRequest("POST", s.base+"/digest", bytes.NewReader(noise(large)))
	check(err)
	request.Header.Set("expect", "100-continue")
	if got := string(content(s.do(request))); !strings.HasPrefix(got, fmt.Sprint(large, " ")) {
		fail("expect: 100-continue: %q", got)
	}
}

// turns sends each piece when the one before has come back.
func (s site) turns() {
	reader, writer := io.Pipe()
	response := s.ask("POST", "/echo", reader)
	defer response.Body.Close()
	for turn := 0; turn < 50; turn++ {
		piece := noise(1000 + turn)
		_, err := writer.Write(piece)
		check(err)
		got := make([]byte, len(piece))
		_, err = io.ReadFull(response.Body, got)
		check(err)
		if !bytes.Equal(got, piece) {
			fail("turn %d came back changed", turn)
		}
	}
	writer.Close()
	if rest := content(response); len(rest) != 0 {
		fail("%d bytes behind the last turn", len(rest))
	}
}

// cancelled breaks answers off; the connection goes on.
func (s site) cancelled() {
	for round := 0; round < 20; round++ {
		ctx, cancel := context.WithCancel(context.Background())
		request, err := http.NewRequestWithContext(ctx, "GET", s.base+"/bytes/20000000", nil)
		check(err)
		response := s.do(request)
		_, err = io.CopyN(io.Discard, response.Body, 100000)
		check(err)
		cancel()
		if _, err = io.Copy(io.Discard, response.Body); !errors.Is(err, context.Canceled) {
			fail("cancelled: %v", err)
		}
		response.Body.Close()
	}
}

func (s site) together() {
	var all sync.WaitGroup
	for lane := 0; lane < 50; lane++ {
		all.Add(1)
		go func(lane int) {
			defer all.Done()
			for round := 0; round < 20; round++ {
				length := lane*1000 + round
				if got := content(s.ask("GET", fmt.Sprintf("/bytes/%d", length), nil)); len(got) != length {
					fail("%d bytes instead of %d", len(got), length)
				}
			}
		}(lane)
	}
	all.Wait()
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, arguments ...any) {
	panic(fmt.Sprintf(format, arguments...))
}
