//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A filter answers system calls by rules, of which the first that fits counts. Calls without a rule are allowed; calls
// of later kernels, of which nobody knew when the rules were made, do not exist.
type (
	filter []rule
	rule   struct {
		call   string
		answer uint32
		when   []check // all of which hold
	}
	// check compares an argument's lower 32 bits, which is all that the kernel uses of numbers, flags and process ids.
	check struct {
		argument int
		mask     uint32 // 0: all bits
		value    uint32
		differs  bool
	}
)

const permit = unix.SECCOMP_RET_ALLOW

// failing answers a call with an error, or with nothing done and no error if errno is 0.
func failing(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

func is(argument int, value uint32) check { return check{argument: argument, value: value} }
func isNot(argument int, value uint32) check {
	return check{argument: argument, value: value, differs: true}
}

// each makes one rule for each of the calls.
func each(answer uint32, calls []string, when ...check) (f filter) {
	for _, call := range calls {
		f = append(f, rule{call, answer, when})
	}
	return f
}

// Places in struct seccomp_data.
const (
	ofNumber       = 0
	ofArchitecture = 4
	ofArguments    = 16
)

// assemble translates the filter for this machine. Calls that it does not have need no rule.
func (f filter) assemble() ([]unix.SockFilter, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	last := 0
	for _, number := range machine.SyscallNames {
		last = max(last, number)
	}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: ofArchitecture, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(machine.ID), SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: ofNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: uint32(last), SkipFalse: 1},
		bpf.RetConstant{Val: failing(unix.ENOSYS)},
	}

	for _, r := range f {
		if number, here := machine.SyscallNames[r.call]; here {
			code = append(code, r.assemble(uint32(number))...)
		}
	}
	raw, err := bpf.Assemble(append(code, bpf.RetConstant{Val: permit}))
	if err != nil {
		return nil, err
	}

	program := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return program, nil
}

// assemble translates one rule. It finds the number of the call loaded, and leaves it so.
func (r rule) assemble(number uint32) []bpf.Instruction {
	var checks []bpf.Instruction
	for _, c := range r.when {
		checks = append(checks, bpf.LoadAbsolute{Off: uint32(ofArguments + 8*c.argument), Size: 4})
		if c.mask != 0 {
			checks = append(checks, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
		}
		checks = append(checks, nil) // a jump, once its length is known
	}
	checks = append(checks, bpf.RetConstant{Val: r.answer})

	next := 0
	for i, in := range checks {
		if in != nil {
			continue
		}
		c, beyond := r.when[next], uint8(len(checks)-i-1)
		if next++; c.differs {
			checks[i] = bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipTrue: beyond}
		} else {
			checks[i] = bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipFalse: beyond}
		}
	}

	code := append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: uint8(len(checks))}},
		checks...)
	if len(r.when) > 0 {
		// an argument is loaded now; a call of this number that did not fit goes on to the rules after it
		code[0] = bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: uint8(len(checks) + 1)}
		code = append(code, bpf.LoadAbsolute{Off: ofNumber, Size: 4})
	}
	return code
}

// load puts the filter on all threads of the process, for good, and on all that they start.
func (f filter) load() error {
	program, err := f.assemble()
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("load filter: %w", errno)
	}
	return nil
}
