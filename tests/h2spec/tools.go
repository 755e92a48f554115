//go:build tools

// Package h2spec pins the HTTP/2 conformance suite that the end-to-end tests run; xtask/setup.sh installs it from here.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
