# make demo   install what is missing, build, record a real program, print its report, write its page
# make test   the same set-up, then every test
# The types of the page's data, made of the Rust ones; `make lint` looks whether they are current.
TYPES = cargo test --release --locked --workspace --test report -- the_types_of_the_page

.PHONY: all build types demo test test-all test-fast test-vm test-vm-spread test-vm-all bench-smoke cpp-test cpp-tsan cpp-fuzz python-check python-test lint clean
.NOTPARALLEL:

BIN := target/release
# The cases of the truth suite that `make test` runs again under Debian's kernels.
VM_CASES ?= readonly writeonly vanish exec shm cow_fork mremap dontneed
OUT ?= target/demo

all: build

build:
	scripts/setup build
	cargo build --release --locked -p varve -p varve-preload -p varve-qemu-counter -p varve-snmalloc

demo: build
	$(MAKE) -s -C workloads bin/demo
	@mkdir -p $(OUT)
	$(BIN)/varve record --force -o $(OUT)/demo.varve -- workloads/bin/demo
	$(BIN)/varve report $(OUT)/demo.varve
	$(BIN)/varve report $(OUT)/demo.varve --html $(OUT)/demo.html
	@echo "The page is $(OUT)/demo.html: open it in a browser."

# Root is needed: recording is. The truth suite runs again under Debian's 6.1 and 6.12 kernels, a third of it under each: the
# rest at the next commits.
# The C++ library's tests take the processor time that the virtual machines leave.
test: test-fast
	scripts/setup cpp
	@mkdir -p target
	{ chrt -i 0 $(MAKE) cpp-test cpp-tsan; echo "exit code $$?"; } > target/cpp.log 2>&1 & \
	$(MAKE) test-vm-spread; vm=$$?; wait; cat target/cpp.log; \
	tail -n 1 target/cpp.log | grep -qx 'exit code 0' && exit $$vm
	$(MAKE) bench-smoke

# The same, and all cases under both kernels.
test-all: test-fast cpp-test cpp-tsan test-vm-all bench-smoke

test-fast: build
	scripts/setup test
	$(MAKE) -s -C workloads
	cargo test --release --locked --workspace --no-fail-fast
	$(MAKE) python-test
	$(MAKE) -s -C web test

test-vm: build
	scripts/setup test
	cargo xtask vm-truth -- $(VM_CASES)

test-vm-spread: build
	scripts/setup test
	cargo xtask vm-truth --spread -- $(VM_CASES)

# Every case under every kernel; half an hour of emulation for each.
test-vm-all: build
	scripts/setup test
	cargo xtask vm-check
	cargo xtask vm-truth

# The Python package: the wheel is built, and what is tested is what was installed from it.
PYTHON := target/python

$(PYTHON)/ready: python/pyproject.toml
	scripts/setup python
	rm -rf $(PYTHON)
	python3 -m venv $(PYTHON)
	$(PYTHON)/bin/pip install -q --disable-pip-version-check ./python[test,lint]
	touch $@

python-check: $(PYTHON)/ready
	cd python && ../$(PYTHON)/bin/ruff check -q . && ../$(PYTHON)/bin/ruff format -q --check . && ../$(PYTHON)/bin/mypy

python-test: build $(PYTHON)/ready
	rm -rf $(PYTHON)/dist
	$(PYTHON)/bin/pip wheel -q --disable-pip-version-check --no-deps -w $(PYTHON)/dist ./python
	$(PYTHON)/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall $(PYTHON)/dist/*.whl
	cd python && VARVE=$(CURDIR)/$(BIN)/varve ../$(PYTHON)/bin/python -m pytest -q -p no:cacheprovider tests

# The C++ library: everything under the address and undefined-behaviour sanitizers.
CPP_BUILD ?= target/cpp
CPP_CONFIGURE = cmake -S cpp -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1

cpp-test:
	scripts/setup cpp
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/asan -DVARVE_SANITIZE=address,undefined
	cmake --build $(CPP_BUILD)/asan
	ctest --test-dir $(CPP_BUILD)/asan --output-on-failure

cpp-tsan:
	scripts/setup cpp
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/tsan -DVARVE_SANITIZE=thread -DVARVE_EXAMPLES=OFF -DVARVE_BENCHMARKS=OFF
	cmake --build $(CPP_BUILD)/tsan --target allocator_test concurrency_test varve-pager-tests
	$(CPP_BUILD)/tsan/tests/allocator_test
	$(CPP_BUILD)/tsan/tests/concurrency_test
	ctest --test-dir $(CPP_BUILD)/tsan -R '^pager\.' --output-on-failure

CPP_FUZZ_SECONDS ?= 60
cpp-fuzz:
	scripts/setup cpp
	scripts/setup fuzz
	$(CPP_CONFIGURE) -B $(CPP_BUILD)/fuzz -DCMAKE_CXX_COMPILER=clang++ -DVARVE_FUZZ=ON -DVARVE_TESTS=OFF \
		-DVARVE_EXAMPLES=OFF -DVARVE_BENCHMARKS=OFF
	cmake --build $(CPP_BUILD)/fuzz
	$(CPP_BUILD)/fuzz/fuzz/fuzz_maps -max_total_time=$(CPP_FUZZ_SECONDS) -max_len=4096 -print_final_stats=1

bench-smoke: build $(PYTHON)/ready
	$(MAKE) -s -C workloads
	cargo build --release --locked -q --workspace --bins
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

types:
	VARVE_WRITE_TYPES=1 $(TYPES)

lint:
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --lib --bins -- -D warnings
	cargo clippy --release --locked --workspace --tests --examples -- -D warnings \
		-A clippy::unwrap_used -A clippy::undocumented-unsafe-blocks -A unreachable_pub -A missing_docs
	$(TYPES)
	$(MAKE) -s -C web check
	$(MAKE) -s python-check
	scripts/setup cpp
	find cpp -name '*.[ch]pp' | xargs clang-format --dry-run --Werror

clean:
	cargo clean
	$(MAKE) -s -C workloads clean
	$(MAKE) -s -C web clean
