# What there is to do with Ebb. `make help` lists it.
#
# CARGO_TARGET_DIR moves everything that is built.

SHELL := /bin/bash
PREFIX ?= /usr/local
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
# The drivers of the tests take the command from the environment.
export EBB := $(abspath $(RELEASE)/ebb)

# Steps of one goal run one after the other: they measure, and share two processors.
.NOTPARALLEL:

.PHONY: help
help: ## print this
	@echo 'In brackets: how long a goal takes on two cores, where that has been measured.'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

.PHONY: build
build: ## build target/release/ebb and target/release/libebb_agent.so [a minute]
	cargo build --release -p ebb-cli -p ebb-agent

.PHONY: packages
packages: ## install the Debian packages that building and testing need and that are missing
	@tools/install-packages

.PHONY: demo
demo: ## build, run two programs in a fraction of their memory, and compare [a minute]
	@tools/install-packages tools/packages.txt
	@$(MAKE) --no-print-directory build
	@tools/demo $(EBB)

# A step that fails does not keep the others from running; all that failed are listed at the end.
STEPS := packages build unit-models-lint miri bench-slots-quick transparency api containers metrics top report advise showram services programs swapon trees \
	families tracing torture hostile rest packages-test bench-quick
STEPS_LONG := unit-long transparency-long programs-long swapon-long trees-long torture-families tracing-long torture-long \
	torture-pins hostile-long rest-long kill-long

.PHONY: test
test: ## everything short: what continuous integration runs [half an hour]
	@MAKE="$(MAKE)" tools/run-steps "make $@" $(STEPS)

.PHONY: test-long
test-long: ## the same, and the long forms [hours]
	@MAKE="$(MAKE)" tools/run-steps "make $@" $(STEPS) $(STEPS_LONG)

.PHONY: lint
lint: ## format, clippy, rustdoc, tidy [a minute]
	python3 tools/test_tidy.py
	python3 tools/test_run_steps.py
	tools/tidy
	cargo fmt --all --check
	# In a directory of their own: cargo lets only one at a time into one, and tests are built and run meanwhile.
	cargo clippy --workspace --all-targets --target-dir $(TARGET)/lint -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --target-dir $(TARGET)/lint --no-deps --workspace --document-private-items

.PHONY: unit
unit: build ## unit and behaviour tests of every crate [ten minutes]
	cargo build --quiet --profile checks -p ebb-agent
	# Many tests wait for most of their time: for a device that hangs, or until nobody has used anything for a while.
	RUST_TEST_THREADS=$$(($$(nproc) + 2)) EBB_TEST_AGENT=$(abspath $(TARGET)/checks/libebb_agent.so) \
	  cargo test --workspace --profile checks --no-fail-fast
	cargo run --quiet --profile checks -p ebb --example embed
	python3 bench/rig/test_rig.py
	python3 bench/suite/test_suite.py
	python3 bench/programs/test_compare.py
	@tools/unit-fallbacks squeeze
.PHONY: unit-long
unit-long: build ## more of the behaviour tests with each fallback
	@tools/unit-fallbacks clean clean_folios collapse plain_map tree advice snapshot devices groups groups_model in_place longterm

.PHONY: models
models: ## loom and shuttle models [four minutes]
	tools/models

.PHONY: unit-models-lint
unit-models-lint: build ## the three at once: many of the tests wait, and the others compute meanwhile [a quarter of an hour]
	@tools/beside "$(MAKE) --no-print-directory -k models lint" "$(MAKE) --no-print-directory unit"

.PHONY: miri
miri: ## miri, where it is installed
	tools/miri

.PHONY: transparency transparency-long
# Those for which it matters most who runs them; transparency-long runs all.
AS_USER := close_all core_dump credentials descriptors privileges
transparency: build ## small C programs under Ebb; transparency-long also without it, and with fallbacks [four minutes]
	python3 tests/transparency/run.py --short --jobs 3 $(foreach v,root early dormant folios device,--variant $(v))
	python3 tests/transparency/run.py --variant user $(foreach p,$(AS_USER),--only $(p))
	python3 tests/transparency/run.py $(foreach v,no-move shared,--variant $(v)) --only kernel_pins --only ioctl_effects
transparency-long: build
	python3 tests/transparency/run.py

# Ten minutes of each; SEED=N repeats a run.
.PHONY: torture-pins
torture-pins: build ## memory that devices use, and requests to them, at random and with each fallback
	TORTURE_SECONDS=60 $(addprefix TORTURE_SEED=,$(SEED)) python3 tests/transparency/run.py --timeout 300 --repeat 2 \
	  $(foreach v,root dormant no-move shared strict,--variant $(v)) --only kernel_pins --only ioctl_effects
	PROPTEST_CASES=20000 cargo test -q -p ebb-agent --profile checks --lib drivers

.PHONY: torture-credentials
torture-credentials: build ## what a program gives up, at random and long; ROUNDS and SEED name a run
	@seed=$${SEED:-$$RANDOM}; echo "SEED=$$seed"; ROUNDS=$${ROUNDS:-30} SEED=$$seed python3 tests/transparency/run.py \
		--timeout 3000 --only credentials $(foreach v,root user early dormant no-move no-background,--variant $(v))

.PHONY: api
api: build ## ebb.h and ebb-hints: compilers, programs without Ebb, what the examples save [seconds]
	python3 tests/api/run.py

.PHONY: containers
containers: build ## the recipes for containers and the schemas they follow; Ebb under the seccomp profiles of container engines [a minute]
	python3 tests/containers/recipes.py
	python3 tests/containers/run.py

.PHONY: metrics
metrics: build ## what ebb metrics tells, read by the parsers of Prometheus [seconds]
	python3 tests/metrics/run.py

.PHONY: services
services: build ## what systemd and a service say to each other, through ebb run [seconds]
	python3 tests/services/run.py

.PHONY: showram
showram: build ## RAM that a program believes in: every way to learn its size, and every other fact about the files [ten seconds]
	python3 tests/showram/run.py

.PHONY: top
top: build ## ebb top on real terminals, seen through a terminal emulator, and the columns of ebb ps [seconds]
	/usr/bin/python3 tests/top/run.py

.PHONY: report
report: build ## the page of ebb run --report in a browser without a window: loads nothing, is legible, says what the run says [ten seconds]
	python3 tests/report/run.py

.PHONY: advise
advise: build ## ebb advise: what it runs is not disturbed, and what it says holds together [ten seconds]
	python3 tests/advise/run.py

.PHONY: programs programs-long
# Those that end within seconds; `programs-long` runs all.
PROGRAMS := python-records python-records-cold numpy-sort processes-fork redis sqlite stress-vm \
	stress-mremap stress-heap cpython-array cpython-fork1 cpython-gc cpython-mmap
programs: build ## real programs in little memory: output compared with an unlimited run [two minutes]
	python3 tests/programs/run.py --short --jobs 2 $(foreach p,$(PROGRAMS),--only $(p))
programs-long: build
	python3 tests/programs/run.py --long

.PHONY: bench-signals
bench-signals: ## what the kernel takes for a fault that it answers with a signal, by threads
	@mkdir -p target
	gcc -O2 -pthread bench/signals/signals.c -o target/bench-signals
	target/bench-signals

.PHONY: bench-aio
bench-aio: ## what a read past the page cache costs by pread and by Linux AIO
	@mkdir -p target
	gcc -O2 -Wall -Werror bench/aio/aio.c -o target/bench-aio
	target/bench-aio

.PHONY: swapon swapon-long
# One of each kind; swapon-long runs all.
SWAPON := move no-room kill exec signal-waits small spawn users descriptors-and-changes stress
swapon: build ## devices that come and go while programs run [a minute]
	cargo build --release -p torture
	python3 tests/swapon/run.py $(foreach c,$(SWAPON),--only $(c))
swapon-long: build
	cargo build --release -p torture
	python3 tests/swapon/run.py --long

.PHONY: trees trees-long
# The quick ones; trees-long runs all.
TREES := make nginx kills idlers
trees: build ## trees of processes under one budget: builds, servers, pools, kills [a minute]
	python3 tests/trees/run.py $(foreach c,$(TREES),--only $(c))
trees-long: build
	tools/install-packages tests/trees/packages-long.txt
	python3 tests/trees/run.py --long

.PHONY: tracing tracing-long
tracing: build ## programs that are traced, stepped, interrupted, or killed while Ebb works in their place [a quarter of a minute]
	python3 tests/tracing/run.py
tracing-long: build
	python3 tests/tracing/run.py --seconds 10 --minutes 10

.PHONY: kill kill-long
kill: build ## kill programs and ebb at random moments: nothing is left behind, nothing spins; kill-long: 2000 times
	python3 tests/kill/run.py
kill-long: build
	python3 tests/kill/run.py --long

.PHONY: families torture-families
families: build ## families of processes that fork, exec, die and stay zombies; torture-families goes on for ten minutes [half a minute]
	python3 tests/families/run.py
torture-families: build
	python3 tests/families/run.py --long

.PHONY: rest rest-long
rest: build ## trees at rest and short of memory: nothing works for nothing [a minute]
	python3 tests/rest/run.py
rest-long: build
	python3 tests/rest/run.py --rounds 20

.PHONY: hostile hostile-long
hostile: build ## a tree with a member that writes anything to what all share [a minute]
	python3 tests/hostile/run.py --rounds 1 --seconds 5
hostile-long: build
	python3 tests/hostile/run.py --rounds 60 --seconds 10

# A disk that turns beside one that does not, memory that leaves because nobody uses it, and writes in flight that fail.
BOTH_KINDS := --idle 1s --swap file:/var/tmp,kind=hdd --swap file:/tmp,kind=ssd
FAILING := EBB_FORCE=strict,failing-flights
.PHONY: torture torture-long
torture: build ## random use of memory by many threads, every byte checked [a minute]
	cargo build --release -p torture
	$(RELEASE)/torture --seconds 3 --megabytes 64 --threads 4
	# There are up to six processes at once, each with books of its own: up to 5 MiB for what is wanted of 96.
	$(EBB) run --ram 32M -- $(RELEASE)/torture --seconds 14 --megabytes 96 --threads 4
	$(EBB) run --ram 12M -- $(RELEASE)/torture --seconds 6 --megabytes 96 --threads 4 --ops -fork,-exec
	EBB_FORCE=always-cold $(EBB) run --ram 48M -- $(RELEASE)/torture --seconds 6 --megabytes 96 --threads 4
	$(EBB) run --ram 48M --swap none -- $(RELEASE)/torture --seconds 6 --megabytes 32 --threads 2 --ops -fork
	$(EBB) run --ram 128M --swap none -- $(RELEASE)/torture --seconds 5 --megabytes 32 --threads 2
	# Writes are in flight only where a process may expect 64 MiB.
	$(FAILING) $(EBB) run --ram 96M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 5 --megabytes 288 --threads 4 --ops -fork,-exec
	$(FAILING),always-cold $(EBB) run --ram 96M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 5 --megabytes 192 --threads 4
	EBB_FORCE=strict,late-flights $(EBB) run --ram 32M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 4 --megabytes 96 --threads 4
torture-long: build
	cargo build --release -p torture
	EBB_STRESS_SECONDS=200 cargo test -q -p ebb --profile checks --test memory --test tree -- stress::
	EBB_FORCE=always-cold EBB_STRESS_SECONDS=100 cargo test -q -p ebb --profile checks --test memory -- stress::
	# Eight threads fork at once, and each child has books of its own: 4.7 MiB for what is wanted of 192.
	$(EBB) run --ram 64M -- $(RELEASE)/torture --seconds 600 --megabytes 192 --threads 8
	$(FAILING) $(EBB) run --ram 96M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 300 --megabytes 384 --threads 4 --ops -fork,-exec
	$(FAILING),always-cold $(EBB) run --ram 112M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 300 --megabytes 256 --threads 4
	EBB_FORCE=strict,late-flights $(EBB) run --ram 64M $(BOTH_KINDS) -- $(RELEASE)/torture --seconds 300 --megabytes 192 --threads 8
	EBB_FORCE=no-move,no-process-madvise $(EBB) run --ram 32M -- $(RELEASE)/torture --seconds 300 --megabytes 96 --threads 4
	EBB_FORCE=always-cold $(EBB) run --ram 48M -- $(RELEASE)/torture --seconds 300 --megabytes 96 --threads 4
	# What those hold that wait nobody gets.
	EBB_FORCE=no-background $(EBB) run --ram 48M -- $(RELEASE)/torture --seconds 300 --megabytes 96 --threads 4

.PHONY: foreign
# FOREIGN has further options of the driver, as --family memory, --only PATTERN, --jobs N.
foreign: build ## the tests of others: the kernel's selftests, and with LTP=DIR the Linux Test Project; FOREIGN=OPTIONS (root) [hours]
	tools/install-packages tests/foreign/packages-long.txt
	mkdir -p $(TARGET)/foreign
	python3 tests/foreign/run.py --into $(TARGET)/foreign --json $(TARGET)/foreign/results.json $(if $(LTP),--ltp $(LTP)) $(FOREIGN)

# What the suite runs: bench/packages.txt names Debian's packages, this the two that Debian has not.
BENCH_PYTHON := $(TARGET)/bench-python
SUITE := $(or $(wildcard $(BENCH_PYTHON)/bin/python3),/usr/bin/python3) bench/suite/run.py --ebb $(EBB) $(foreach text,$(ONLY),--only $(text)) \
	$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(PLACES),--places $(PLACES)) $(if $(JOIN),--join $(JOIN)) $(if $(THP),--thp $(THP))
# Some of the tables alone are no page.
BENCH_PART := $(QUICK)$(if $(JOIN),,$(ONLY))

# Rows of each kind, for `make test`.
BENCH_QUICK := swapin zeros GET program uniform random-write hard records fill

.PHONY: bench bench-quick bench-packages bench-python
bench: build bench-packages ## the proof: every workload beside the kernel's swap; ONLY=TEXT, ROUNDS=N, PLACES=a,b, JOIN=FILE, QUICK=1 (root) [hours]
	cargo build --release -q -p ebb-bench-micro
	mkdir -p $(TARGET)/bench
	$(SUITE) --micro $(abspath $(RELEASE)/ebb-bench-micro) $(if $(QUICK),--quick) --json $(TARGET)/bench/figures.json \
	  --plots $(if $(BENCH_PART),$(TARGET)/bench,docs/plots) $(if $(BENCH_PART),,--doc docs/performance.md)
bench-quick: build # the harness itself, with what is installed; without root it says that it needs it
	cargo build --release -q -p ebb-bench-micro
	mkdir -p $(TARGET)/bench
	$(SUITE) --micro $(abspath $(RELEASE)/ebb-bench-micro) --quick $(addprefix --only ,$(BENCH_QUICK)) --plots $(TARGET)/bench --json $(TARGET)/bench/quick.json > $(TARGET)/bench/quick.md \
	  && tail -n 3 $(TARGET)/bench/quick.md
bench-packages:
	@tools/install-packages bench/packages.txt || echo "make bench: what needs a package that is missing is left out"
.PHONY: profile
profile: build ## where the time goes: make profile WORKLOAD="random-read --mib 256 --seconds 5" RAM=183M (needs perf)
	cargo build --release -q -p ebb-bench-micro
	bench/suite/profiler.py --ram $(or $(RAM),183M) --ebb $(EBB) -- $(abspath $(RELEASE)/ebb-bench-micro) $(or $(WORKLOAD),random-read --mib 256 --seconds 5)
bench-python: ## duckdb and blosc2 for the suite, from PyPI, in a directory of their own
	/usr/bin/python3 -m venv --system-site-packages $(BENCH_PYTHON)
	$(BENCH_PYTHON)/bin/pip install -q -r bench/requirements.txt

.PHONY: bench-micro
bench-micro: ## of `make bench` the single accesses, and swap-out and swap-in by kind of data (root)
	@$(MAKE) --no-print-directory bench ONLY="access swapping"

# The agent that records what happens to each page is built apart, so that nobody takes it for the real one.
.PHONY: misses
misses: ## pages that Ebb misses, beside LRU, better policies and the optimum; ONLY=TEXT, PART=0.5, QUICK=1 [half an hour]
	cargo build --release -q --target-dir $(TARGET)/events -p ebb-cli -p ebb-agent --features ebb-agent/events
	cargo build --release -q -p ebb-bench-misses
	@$(if $(QUICK),,tools/install-packages bench/misses/packages.txt || echo "make misses: what needs a package that is missing is left out")
	python3 bench/misses/run.py --ebb $(TARGET)/events/release/ebb --misses $(RELEASE)/ebb-bench-misses \
	  $(if $(QUICK),--quick) $(foreach text,$(ONLY),--only $(text)) $(if $(PART),--part $(PART)) --json $(TARGET)/misses.json
.PHONY: bench-bound
bench-bound: build ## by how much programs pass their budget, as their cgroup counts it; NODE=DIR with webpack and eslint (root)
	bench/bound/run.py $(if $(NODE),--node $(NODE)) $(foreach text,$(ONLY),--only $(text))
.PHONY: bench-slots bench-slots-quick
bench-slots: ## the slot allocator: threads, lock waits, fragmentation, order of writes
	cargo run --release -q -p ebb-bench-slots
bench-slots-quick: # what it checks on the way, without time to measure
	cargo run --release -q -p ebb-bench-slots -- --quick

.PHONY: bench-overhead
bench-overhead: build ## programs with all the RAM they want, alone and under Ebb
	python3 bench/programs/overhead.py --ebb $(EBB)

.PHONY: bench-advise
bench-advise: build ## what `ebb advise` foretells, against runs with these budgets [forty minutes]
	/usr/bin/python3 bench/advise/run.py

.PHONY: bench-startup
bench-startup: build ## what a short command costs: plain, with the agent inert, and under Ebb
	python3 bench/programs/startup.py --ebb $(EBB)

# Written from the description of the command line, and kept in the tree: packing and installing need no further build.
.PHONY: man completions
man: ## write the manual pages and the completions of shells, after a change to options or to texts of --help
	EBB_WRITE_PAGES=$$(date +%F) cargo test --quiet --profile checks -p ebb-cli --test pages
completions: man

.PHONY: install uninstall
# What belongs to each shell, and where it looks for that below PREFIX.
BASH_COMPLETIONS := share/bash-completion/completions/ebb
ZSH_COMPLETIONS := share/zsh/site-functions/_ebb
FISH_COMPLETIONS := share/fish/vendor_completions.d/ebb.fish
MAN_PAGES := $(notdir $(wildcard man/*.1))
install: ## install what was built below PREFIX (/usr/local) [seconds]
	@test -e $(EBB) || { echo "make install: nothing is built: run make build first, as yourself" >&2; exit 1; }
	install -D -m 755 $(EBB) $(DESTDIR)$(PREFIX)/bin/ebb
	install -D -m 755 $(RELEASE)/libebb_agent.so $(DESTDIR)$(PREFIX)/lib/ebb/libebb_agent.so
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(addprefix man/,$(MAN_PAGES)) $(DESTDIR)$(PREFIX)/share/man/man1
	install -D -m 644 completions/ebb.bash $(DESTDIR)$(PREFIX)/$(BASH_COMPLETIONS)
	install -D -m 644 completions/_ebb $(DESTDIR)$(PREFIX)/$(ZSH_COMPLETIONS)
	install -D -m 644 completions/ebb.fish $(DESTDIR)$(PREFIX)/$(FISH_COMPLETIONS)
	install -D -m 644 include/ebb.h $(DESTDIR)$(PREFIX)/include/ebb.h
uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/ebb $(DESTDIR)$(PREFIX)/lib/ebb/libebb_agent.so $(DESTDIR)$(PREFIX)/include/ebb.h \
	  $(addprefix $(DESTDIR)$(PREFIX)/,$(addprefix share/man/man1/,$(MAN_PAGES)) $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS) $(FISH_COMPLETIONS))
	-rmdir $(DESTDIR)$(PREFIX)/lib/ebb

# What is built goes into target/packages. `make packages` is another matter: it installs what building needs.
PACK := python3 packaging/build.py --from $(RELEASE) --into $(TARGET)/packages
.PHONY: tarball deb rpm wheel packages-test
tarball: build ## pack what was built, to run from wherever it is unpacked [seconds, once it is built]
	$(PACK) tarball
deb: build ## pack it for Debian and Ubuntu [seconds]
	$(PACK) deb
rpm: build ## pack it for Fedora, RHEL and SUSE [seconds]
	$(PACK) rpm
wheel: build ## pack it for pip, with the Python module `ebb` [seconds]
	$(PACK) wheel
packages-test: build ## all four: made twice, installed into clean places, and run there by an ordinary user [a minute]
	python3 tests/packages/run.py

.PHONY: clean
clean: ## remove everything that was built
	cargo clean
