# make demo   install what is missing, build, record a real program, print its report, write its page
# make test   the same set-up, then every test
# The types of the page's data, made of the Rust ones; `make lint` looks whether they are current.
TYPES = cargo test --release --locked --workspace --test report -- the_types_of_the_page

.PHONY: all ahead build build-xtask types demo check test test-all test-rust test-docs test-python test-web build-cpp test-cpp build-cpp-tsan test-cpp-tsan test-kernels build-bench bench-smoke bench-check cpp-fuzz python-check lint lint-rust clean
.NOTPARALLEL:

BIN := target/release
OUT ?= target/demo
PRODUCT := -p varve -p varve-preload -p varve-qemu-counter -p varve-snmalloc

all: build

build:
	scripts/setup build
	cargo build --release --locked $(PRODUCT)

# With the product, so that what both depend on has the same features. `cargo xtask` builds it alone, with others, and compiles that again.
build-xtask:
	cargo build --release --locked -q $(PRODUCT) -p xtask

demo: build
	$(MAKE) -s -C workloads bin/demo
	@mkdir -p $(OUT)
	$(BIN)/varve record --force -o $(OUT)/demo.varve -- workloads/bin/demo
	$(BIN)/varve report $(OUT)/demo.varve
	$(BIN)/varve report $(OUT)/demo.varve --html $(OUT)/demo.html
	@echo "The page is $(OUT)/demo.html: open it in a browser."

# Root is needed: recording is. Every phase runs, whatever failed before; scripts/test ends with one screen.
# `make test PHASES="rust web"` runs some.
test: build
	scripts/test $(PHASES)

# Format, lints and all tests that record nothing: what one runs at every commit.
check: build
	cargo fmt --all --check
	$(CLIPPY)
	scripts/setup nextest
	$(NEXTEST) -E 'not ($(RECORDING))'
	$(MAKE) -s -C web check test

# The same as `make test`, and all cases under both kernels: half an hour of emulation for each.
test-all: test build-xtask
	$(BIN)/xtask vm-check
	$(BIN)/xtask vm-truth --all

NEXTEST = target/tools/cargo-nextest nextest run --release --locked --workspace
# The suites that record, and so need root.
RECORDING := package(varve-truth) | package(varve-faults) | package(varve-trust) | package(varve-alloc-tests) | package(varve-cli-tests) | package(varve-bpf) | package(varve-preload)

# Root folders are fetched and workloads are built while the tests are compiled. Where VARVE_WORKLOADS says where these are, no case of the truth
# suites looks whether they are current.
# Exit code 77: a root folder cannot be made, as there is no network or no mirror has its release. Its tests say that they were skipped.
test-rust: build build-xtask
	scripts/setup test
	scripts/setup nextest
	$(BIN)/xtask roots & roots=$$!; $(MAKE) -s -C workloads & workloads=$$!; \
	$(NEXTEST) --no-run; tests=$$?; wait $$roots; roots=$$?; \
	wait $$workloads && { [ $$roots -eq 0 ] || [ $$roots -eq 77 ]; } && exit $$tests
	VARVE_WORKLOADS=$(CURDIR)/workloads/bin $(NEXTEST) --test-threads=$$(($$(nproc) * 3 / 2))

# Examples in the documentation; cargo-nextest does not run them.
test-docs:
	cargo test --release --locked --workspace --doc -q

test-web: build
	$(MAKE) -s -C web test JUNIT=$(CURDIR)/target/test/web.xml

# The cases that differ by kernel run again under Debian's 6.1 and 6.12.
# Exit code 77: there is no network to fetch them from.
test-kernels: build build-xtask
	scripts/setup test
	$(BIN)/xtask vm-truth || [ $$? -eq 77 ]

# Figures of time with their goals. No test judges a time: a machine that is busy is not a fault of the product.
bench-check: build
	$(MAKE) -s -C workloads
	$(GOALS)

GOALS = cargo bench --locked --workspace --bench goals

# The Python package: the wheel is built, and what is tested is what was installed from it.
PYTHON := target/python

# What scripts/test has built while the Rust tests run.
ahead: build-cpp build-cpp-tsan build-bench

$(PYTHON)/ready: python/pyproject.toml
	scripts/setup python
	rm -rf $(PYTHON)
	python3 -m venv $(PYTHON)
	$(PYTHON)/bin/pip install -q --disable-pip-version-check ./python[test,lint]
	touch $@

python-check: $(PYTHON)/ready
	cd python && ../$(PYTHON)/bin/ruff check -q . && ../$(PYTHON)/bin/ruff format -q --check . && ../$(PYTHON)/bin/mypy

# Spark's come first: they take as long as all the others, beside which they run.
SPARK_TESTS := tests/test_fleet_spark.py
PYTHON_TESTS := $(SPARK_TESTS) $(filter-out $(SPARK_TESTS),$(patsubst python/%,%,$(wildcard python/tests/test_*.py)))
test-python: build $(PYTHON)/ready
	rm -rf $(PYTHON)/dist
	$(PYTHON)/bin/pip wheel -q --disable-pip-version-check --no-deps -w $(PYTHON)/dist ./python
	$(PYTHON)/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall $(PYTHON)/dist/*.whl
	cd python && VARVE=$(CURDIR)/$(BIN)/varve ../$(PYTHON)/bin/python -m pytest -q -p no:cacheprovider -n 2 --dist loadfile --no-loadscope-reorder \
		--junitxml=$(CURDIR)/target/test/python.xml $(TESTS) $(PYTHON_TESTS)

# The C++ library: everything under the address and undefined-behaviour sanitizers. -Og: g++ needs more than twice the time for -O1 under
# these sanitizers, and the tests are not much faster then.
CPP_BUILD ?= target/cpp
CPP_CONFIGURE = cmake -S cpp -G Ninja -DCMAKE_BUILD_TYPE=None

build-cpp:
	scripts/setup cpp
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/asan -DCMAKE_CXX_FLAGS=-Og -DVARVE_SANITIZE=address,undefined
	cmake --build $(CPP_BUILD)/asan

test-cpp: build-cpp
	ctest --test-dir $(CPP_BUILD)/asan -j 2 --output-on-failure --output-junit $(CURDIR)/target/test/cpp.xml

build-cpp-tsan:
	scripts/setup cpp
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/tsan -DCMAKE_CXX_FLAGS=-O1 -DVARVE_SANITIZE=thread -DVARVE_EXAMPLES=OFF -DVARVE_BENCHMARKS=OFF
	cmake --build $(CPP_BUILD)/tsan --target allocator_test concurrency_test varve-pager-tests

test-cpp-tsan: build-cpp-tsan
	$(CPP_BUILD)/tsan/tests/allocator_test
	$(CPP_BUILD)/tsan/tests/concurrency_test
	ctest --test-dir $(CPP_BUILD)/tsan -j 2 -R '^pager\.' --output-on-failure --output-junit $(CURDIR)/target/test/cpp-tsan.xml

CPP_FUZZ_SECONDS ?= 60
cpp-fuzz:
	scripts/setup cpp
	scripts/setup fuzz
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/fuzz -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_CXX_COMPILER=clang++ -DVARVE_FUZZ=ON -DVARVE_TESTS=OFF \
		-DVARVE_EXAMPLES=OFF -DVARVE_BENCHMARKS=OFF
	cmake --build $(CPP_BUILD)/fuzz
	$(CPP_BUILD)/fuzz/fuzz/fuzz_maps -max_total_time=$(CPP_FUZZ_SECONDS) -max_len=4096 -print_final_stats=1

# With the product, as xtask is.
build-bench:
	cargo build --release --locked -q $(PRODUCT) -p varve-bench
	$(GOALS) -q --no-run

bench-smoke: build $(PYTHON)/ready build-bench
	$(MAKE) -s -C workloads
	$(BIN)/varve-bench overhead --smoke
	$(BIN)/varve-bench samples --smoke
	$(BIN)/varve-bench hold --smoke
	$(BIN)/varve-bench exact --smoke
	$(BIN)/varve-bench fault --smoke
	$(BIN)/varve-bench capture --smoke
	$(BIN)/varve-bench study --smoke
	$(BIN)/varve-bench servers --smoke
	$(BIN)/varve-bench alloc --smoke
	$(BIN)/varve-bench start --smoke
	$(BIN)/varve-bench marks --smoke
	$(BIN)/varve-bench memory --smoke
	$(BIN)/varve-bench trace-size --smoke
	$(BIN)/varve-bench density --smoke
	$(BIN)/varve-bench report --smoke
	$(BIN)/varve-bench import --smoke
	$(BIN)/varve-bench tier --smoke
	$(PYTHON)/bin/python python/bench/fleet.py views --smoke
	$(PYTHON)/bin/python python/bench/package.py import --smoke
	VARVE=$(BIN)/varve $(PYTHON)/bin/python python/bench/package.py steady --smoke
	$(GOALS) -- --smoke

types:
	VARVE_WRITE_TYPES=1 $(TYPES)

# Tests may unwrap.
define CLIPPY
cargo clippy --release --locked --workspace --lib --bins -- -D warnings
cargo clippy --release --locked --workspace --tests --examples --benches -- -D warnings \
	-A clippy::unwrap_used -A clippy::undocumented-unsafe-blocks -A unreachable_pub -A missing_docs
endef

lint-rust:
	$(CLIPPY)
	$(TYPES)

# Python's packages come while the Rust code is looked at.
lint:
	cargo fmt --all --check
	$(MAKE) -s $(PYTHON)/ready & python=$$!; $(MAKE) --no-print-directory lint-rust; rust=$$?; wait $$python && exit $$rust
	$(MAKE) -s -C web check
	$(MAKE) -s python-check
	scripts/setup cpp
	find cpp -name '*.[ch]pp' | xargs clang-format --dry-run --Werror

clean:
	cargo clean
	$(MAKE) -s -C workloads clean
	$(MAKE) -s -C web clean
