// Command front is the TLS listener of a server's https-listen-port, as k3s's own mux is.
//
// The supervisor's paths go to the launcher's unix socket; everything else goes to kube-apiserver on
// loopback, or is answered 503 with the state the launcher last wrote to standard input, one per line:
//
//	starting                only /db/info is passed to the launcher
//	apiserver not ready     the supervisor's paths are served, the API is not
//	apiserver disabled      the same, for an etcd-only server
//	ready                   the API is served
//
// It decides nothing else: who may ask the supervisor what is the launcher's business, and who may ask the
// API is kube-apiserver's. It ends when standard input does, so it never outlives the launcher.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	stateStarting = "starting"
	stateReady    = "ready"
)

// Headers by which kube-apiserver (--requestheader-*) and the launcher learn who the client is. A client's
// own are always taken off first.
const (
	userHeader     = "X-Remote-User"
	groupHeader    = "X-Remote-Group"
	loopbackHeader = "X-Bed-Loopback"
)

type front struct {
	state      atomic.Value
	clientCAs  *x509.CertPool
	supervisor *httputil.ReverseProxy
	api        *httputil.ReverseProxy
}

// supervised says whether k3s's own router, not the API server, serves the path (k3s source, release-1.34,
// pkg/server/handlers/router.go).
func supervised(path string) bool {
	return path == "/ping" || path == "/cacerts" || path == "/db/info" || strings.HasPrefix(path, "/v1-k3s/")
}

// status is a Kubernetes Status, its fields in the API server's order.
type status struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   struct{} `json:"metadata"`
	Status     string   `json:"status"`
	Message    string   `json:"message"`
	Reason     string   `json:"reason"`
	Code       int      `json:"code"`
}

// unavailable answers as k3s's util.SendError does.
func unavailable(writer http.ResponseWriter, message string) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(writer).Encode(status{
		Kind: "Status", APIVersion: "v1", Status: "Failure",
		Message: message, Reason: "ServiceUnavailable", Code: http.StatusServiceUnavailable,
	})
}

func (f *front) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	request.Header.Del(loopbackHeader)
	for name := range request.Header {
		if strings.HasPrefix(name, "X-Remote-") {
			request.Header.Del(name)
		}
	}
	state := f.state.Load().(string)
	// The datastore registers /db/info before the router exists (k3s source, pkg/cluster/router.go).
	if request.URL.Path == "/db/info" || (supervised(request.URL.Path) && state != stateStarting) {
		if host, _, err := net.SplitHostPort(request.RemoteAddr); err == nil && net.ParseIP(host).IsLoopback() {
			request.Header.Set(loopbackHeader, "true")
		}
		f.supervisor.ServeHTTP(writer, request)
		return
	}
	if state != stateReady {
		unavailable(writer, state)
		return
	}
	if subject := f.subject(request.TLS); subject != nil {
		request.Header.Set(userHeader, subject.CommonName)
		request.Header[groupHeader] = subject.Organization
	}
	f.api.ServeHTTP(writer, request)
}

// subject names the client by its certificate. One of another authority is as good as none: kube-apiserver
// then answers 401, where a refused handshake would be a behaviour k3s does not have.
func (f *front) subject(state *tls.ConnectionState) *pkix.Name {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots:         f.clientCAs,
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil
	}
	return &state.PeerCertificates[0].Subject
}

// follow takes states from the launcher until it is gone.
func (f *front) follow(states io.Reader) {
	scanner := bufio.NewScanner(states)
	for scanner.Scan() {
		f.state.Store(scanner.Text())
	}
	os.Exit(0)
}

// proxy passes requests on as they are; failed says what an unreachable target means to the client.
func proxy(scheme, host string, transport http.RoundTripper, failed string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(&url.URL{Scheme: scheme, Host: host})
			request.Out.Host = request.In.Host
		},
		Transport:     transport,
		FlushInterval: -1, // watches and logs must not wait in a buffer
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(writer http.ResponseWriter, _ *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				unavailable(writer, failed)
			}
		},
	}
}

// upgradable sends upgrades (exec, port-forward) over HTTP/1.1, which has them, and the rest over HTTP/2.
type upgradable struct{ upgrades, others http.RoundTripper }

func (u upgradable) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Header.Get("Upgrade") != "" {
		return u.upgrades.RoundTrip(request)
	}
	return u.others.RoundTrip(request)
}

func pool(path string) *x509.CertPool {
	pem, err := os.ReadFile(path)
	if err != nil {
		log.Fatalf("front: %v", err)
	}
	certificates := x509.NewCertPool()
	certificates.AppendCertsFromPEM(pem)
	return certificates
}

func pair(certificate, key string) tls.Certificate {
	loaded, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatalf("front: %v", err)
	}
	return loaded
}

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "", "address and port of the TLS listener")
	certificate := flag.String("cert", "", "serving certificate")
	key := flag.String("key", "", "its key")
	clientCA := flag.String("client-ca", "", "authority of client certificates")
	supervisor := flag.String("supervisor", "", "unix socket of the launcher")
	api := flag.String("api", "", "address and port of kube-apiserver")
	apiCA := flag.String("api-ca", "", "authority of its certificate")
	proxyCert := flag.String("proxy-cert", "", "front-proxy client certificate")
	proxyKey := flag.String("proxy-key", "", "its key")
	flag.Parse()

	apiTLS := &tls.Config{
		RootCAs:      pool(*apiCA),
		Certificates: []tls.Certificate{pair(*proxyCert, *proxyKey)},
		ServerName:   "kubernetes",
	}
	f := &front{
		clientCAs: pool(*clientCA),
		supervisor: proxy("http", "supervisor", &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", *supervisor)
			},
			DisableKeepAlives: true,
		}, stateStarting),
		api: proxy("https", *api, upgradable{
			upgrades: &http.Transport{TLSClientConfig: apiTLS.Clone()},
			others:   &http.Transport{TLSClientConfig: apiTLS.Clone(), ForceAttemptHTTP2: true},
		}, "apiserver not ready"),
	}
	f.state.Store(stateStarting)
	go f.follow(os.Stdin)

	server := &http.Server{
		Addr:              *listen,
		Handler:           f,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair(*certificate, *key)},
			ClientAuth:   tls.RequestClientCert,
			MinVersion:   tls.VersionTLS12,
		},
	}
	log.Fatalf("front: %v", server.ListenAndServeTLS("", ""))
}
