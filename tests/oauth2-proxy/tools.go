//go:build tools

// Package oauth2proxy pins the service that the guide's nginx site lets people sign in by; xtask/setup.sh installs it from here.
package oauth2proxy

import _ "github.com/oauth2-proxy/oauth2-proxy/v7"
