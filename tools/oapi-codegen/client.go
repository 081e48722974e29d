// Package client keeps what generated clients import among the requirements of this module.
package client

import _ "github.com/oapi-codegen/runtime"
