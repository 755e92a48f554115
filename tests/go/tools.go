//go:build tools

// Package clients pins the programs of gRPC's interoperability tests; xtask/setup.sh builds them from here.
package clients

import (
	_ "google.golang.org/grpc/interop/client"
	_ "google.golang.org/grpc/interop/server"
)
