// Command grpchealth is a server that has nothing but grpc-go's health service. It is told by lines on its standard input what to answer
// about a service ("shop.v1.Cart NOT_SERVING"; "-" is the server as a whole), and says each line when it holds. It ends with its input.
//
//	grpchealth 127.0.0.1:50051 [cert.pem key.pem]
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	check(err)
	var options []grpc.ServerOption
	if len(os.Args) > 3 {
		keys, err := credentials.NewServerTLSFromFile(os.Args[2], os.Args[3])
		check(err)
		options = append(options, grpc.Creds(keys))
	}
	server := grpc.NewServer(options...)
	states := health.NewServer()
	healthpb.RegisterHealthServer(server, states)
	go func() { check(server.Serve(listener)) }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		service := strings.TrimPrefix(words[0], "-")
		states.SetServingStatus(service, healthpb.HealthCheckResponse_ServingStatus(healthpb.HealthCheckResponse_ServingStatus_value[words[1]]))
		fmt.Println(lines.Text())
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
