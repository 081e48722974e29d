// Package pictures_test makes the pictures of the documentation: it runs the examples on a real server, and goes
// through its pages in a real browser.
package pictures_test
