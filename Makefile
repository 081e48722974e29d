# dagctl: `make demo` shows it at work, `make test` tests it. Both install what this machine lacks, once, and say so.

# Go's usual places, for shells whose PATH lacks them.
export PATH := $(PATH):/usr/local/go/bin:/usr/lib/go/bin:/opt/homebrew/bin:/usr/local/bin

# Without git, or in a clone that is another user's, Go cannot stamp the revision and must not try.
ifneq ($(shell git rev-parse HEAD 2>/dev/null | wc -c | tr -d ' '),41)
export GOFLAGS += -buildvcs=false
endif

export FUZZ ?= 60s

.DEFAULT_GOAL := help
.PHONY: help kills queue birthdays pictures lighthouse pages demo test check build bench soak soak-model soak-plain soak-files soak-listing soak-memory model chaos attacks isolation alerts fuzz setup test-servers format vet lint

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: setup build ## run examples/us-flights with all that it needs; ONCE=1 ends when all is computed
	@scripts/demo.sh

test: setup test-servers vet ## run all tests, as continuous integration does
	go test -race -ldflags=-w -parallel 4 -timeout 60m ./...
	go test -tags noscope -run SecondWall ./cmd/dagctl

check: setup format vet lint test ## formatting, vet, staticcheck and all tests: what a change must pass

build: setup ## build bin/dagctl; Go knows what has changed
	go build -o bin/dagctl ./cmd/dagctl

bench: setup ## measure beside a bare queue and PostgreSQL itself, an hour or more; BENCH='-figure throughput' for one figure
	go run ./bench $(BENCH)

soak: setup ## swap a thousand times under readers and kill -9, for about an hour; SOAK='-swaps 100' for less
	go test -tags soak -run Soak -timeout 3h -v ./proof -args $(SOAK)
	$(MAKE) soak-plain
	$(MAKE) soak-model
	$(MAKE) soak-files
	$(MAKE) soak-listing
	$(MAKE) soak-memory
	$(MAKE) fuzz FUZZ=10m

soak-files: setup ## read 10,000 random CSV and NDJSON files as Go's own readers do, for some minutes
	go test -run Random -timeout 2h -v ./operators/textfile -args -files 10000

soak-listing: setup test-servers ## list a bucket of a million objects, twice, in some minutes; it takes 4 GB of disk
	go test -tags soak -run SoakListing -timeout 60m -v ./operators/s3source -args -objects 1000000

soak-memory: setup ## watch the memory of dev and serve for an hour at once; MEMORY='-memory-for 10m' for less
	go test -tags soak -run Soak -timeout 24h -v ./proof/memory -args $(MEMORY)

soak-plain: setup ## compare 200 random pipelines with a plain evaluator, for half an hour; PLAIN='-soak-pipelines 20' for less
	go test -tags soak -run Soak -timeout 3h -v ./proof/plain -args $(PLAIN)

soak-model: setup ## compare 200,000 random steps of three DAGs with a model, for hours; MODEL='-soak-steps 10000' for less
	go test -tags soak -run Soak -timeout 24h -v ./dispatcher/histories -args $(MODEL)

model: setup ## explore every state of two small DAGs, compare 300 random edits of queries with full rebuilds, and 10,000 steps of who may read what with a model
	go test -timeout 3h -v -run 'TestNoReachableState|TestReuseByColumn|TestReadRolesInRandom' ./dispatcher/builds -args -model-whole \
		-reuse-edits 300 -read-steps 10000

fuzz: setup ## run each fuzz target of the repository for a while; FUZZ=10m for longer
	scripts/fuzz.sh

attacks: setup test-servers ## attack a real server in some 1,500 ways, while another org's plans have to take less than a second
	go test -run 'TestAttacks$$' -timeout 30m -v ./cmd/dagctl -args -attacks-all -attacks-quiet 1s

isolation: setup test-servers ## let one org do its worst on an idle machine: tasks of another start within thrice the time
	go test -run 'TestIsolation$$' -timeout 60m -v ./cmd/dagctl -args -isolation-queue 1000000 -isolation-hours 99000 \
		-isolation-tasks 500 -isolation-times 3

chaos: setup test-servers ## kill, stop and cut off servers, workers and PostgreSQL for hours; CHAOS='-chaos-kills 100 -chaos-postgres 10 -chaos-zombies 10 -chaos-worker-kills 100 -chaos-worker-zombies 10 -chaos-tasks 3000' for less
	go test -tags soak -run Chaos -timeout 12h -v ./proof -args $(CHAOS)

kills: setup ## kill and stop servers and workers for two hours, while files and versions change: what is served is exact; KILLS='-kills-for 10m' for less
	go test -tags soak -run 'TestKills$$' -timeout 12h -v ./proof/kills -args $(KILLS)

queue: setup ## 50,000 tasks of examples/task-queue and 10,000 of examples/planner-worker through kills, for some minutes
	go test -run 'Test(TaskQueue|PlannerWorker)ThroughKills$$' -parallel 1 -timeout 60m -v ./examples -args -queue-tasks 50000 \
		-planner-tasks 10000 -planner-entities 200

birthdays: setup test-servers ## a year of examples/birthdays with 2,000 users in 50 zones, by a scripted clock, for half an hour
	go test -run 'TestBirthdaysThroughAYear$$' -timeout 60m -v ./examples -args -birthday-users 40

alerts: setup ## cause outages under a real Prometheus with the rules of docs/alerts.yaml, for some minutes
	@command -v prometheus >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; }
	go test -tags soak -run 'TestAlertsFire$$' -timeout 30m -v ./proof

pages: setup ## measure every page with 10,000 datasets of 100 versions each and a million tasks, for half an hour; PAGES='-pages-size 2x500x5' for less
	go test -tags soak -run 'TestPagesAtScale$$' -timeout 3h -v ./cmd/dagctl -args $(PAGES)

lighthouse: build test-servers ## measure the pages with Lighthouse: performance, accessibility and best practices have to be 95 or more
	@scripts/lighthouse.sh

pictures: setup test-servers ## make the pictures of the documentation anew, by running the examples and walking through the pages
	go test -tags soak -run 'TestPictures$$' -timeout 10m -v ./proof/pictures -args -into "$$PWD/docs/images"

setup: ## install what is missing: a C++ compiler and PostgreSQL
	@scripts/setup.sh

test-servers:
	@scripts/test_servers.sh

format: ## fail if a file is not gofmt's
	@files=$$(gofmt -l $$(find . -name '*.go' -not -path './.*')); [ -z "$$files" ] || { echo "gofmt -w these:"; echo "$$files"; exit 1; }

vet: setup ## go vet
	go vet ./...

lint: setup ## staticcheck, at the version that tools/staticcheck pins
	go build -C tools/staticcheck -o ../../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck ./...
