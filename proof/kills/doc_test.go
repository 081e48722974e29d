// Package kills_test is an installation as its users have it, of which some part is killed or stopped every second: it
// deploys, rewrites files and reads through the public commands and API only, and what it reads has to be exact.
package kills_test
