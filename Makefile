# Short names for what a person runs. The work is done by `cargo xtask`, so that CI, a laptop and
# this file cannot differ.

SIZE ?= 2G
ROUNDS ?= 1
TIME ?= 600

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench bless fmt

# What there is to make.
help:
	@echo "make demo   [SIZE=2G] [ROUNDS=1]   copy a file with dio, cp and dd, side by side"
	@echo "make test                          all lanes of CI"
	@echo "make soak   [SEED=n] [TIME=600]    long seeded tests, TIME seconds each"
	@echo "make bench                         the benchmarks"
	@echo "make bless                         rewrite the golden files"
	@echo "make fmt                           format the code"

# Takes its scratch folder away again however it ends, Ctrl-C included.
demo:
	@cargo xtask demo --size $(SIZE) --rounds $(ROUNDS)

# The lanes of CI, in order.
test:
	@cargo xtask ci

# Without SEED, a fresh one, printed first.
soak:
	@cargo xtask soak $(if $(SEED),--seed $(SEED)) --seconds $(TIME)

# The engine on the null device and on this machine, striped files, the reader that reads ahead.
bench:
	@cargo bench -p diopter --bench engine --bench stripes --bench readers

# The golden files become what the code prints now; read the diff.
bless:
	@cargo xtask bless

# rustfmt over everything.
fmt:
	@cargo fmt --all
