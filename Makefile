# Short names for what a person runs. The work is done by `cargo xtask`, so that CI, a laptop and
# this file cannot differ.

SIZE ?= 2G
ROUNDS ?= 1
TIME ?= 1800
PREFIX ?= /usr/local
DESTDIR ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all suites soak bench peers bless fmt install uninstall

# What there is to make.
help:
	@echo "make install [PREFIX=/usr/local] [DESTDIR=]   dio, its libraries, manual and completions"
	@echo "make uninstall [PREFIX=...] [DESTDIR=]        removes what was installed there"
	@echo "make demo   [SIZE=2G] [ROUNDS=1]   copy a file with dio, cp and dd, side by side"
	@echo "make test                          the quick lanes of CI, under 10 minutes once built"
	@echo "make test-all                      all lanes of CI, what .ci/run calls"
	@echo "make suites [ONLY=name] [QUICK=1]  other projects' tests with and without dio run"
	@echo "make soak   [TIME=1800] [SEED=n]   everything seeded or random, TIME seconds in total"
	@echo "make bench  [ROWS='...'] [QUICK=1] the numbers that the design must reach, as root"
	@echo "make peers  [ARGS='...']           other runtimes and programs next to diopter, as root"
	@echo "make bless                         rewrite the golden files"
	@echo "make fmt                           format the code"

# Takes its scratch directory away again however it ends, Ctrl-C included.
demo:
	@cargo xtask demo --size $(SIZE) --rounds $(ROUNDS)

# The quick lanes of CI, in order.
# A background job of a shell ignores SIGINT, and so would everything that the tests start.
test:
	@env --default-signal=INT,QUIT cargo xtask ci --quick

# All lanes, the quick ones included, and one summary at the end.
test-all:
	@env --default-signal=INT,QUIT cargo xtask ci

# Takes its mounts, devices and processes away again however it ends.
suites:
	@cargo xtask suites $(if $(ONLY),--only $(ONLY)) $(if $(ON),--on $(ON)) \
		$(if $(MODE),--mode $(MODE)) $(if $(QUICK),--quick)

# Without SEED, a fresh one, printed first.
soak:
	@cargo xtask soak $(if $(SEED),--seed $(SEED)) --seconds $(TIME)

# Every number that the design must reach, side by side with its peer. Takes its devices and mounts
# away again however it ends. ROWS names some of them; `cargo xtask bench --help` has the rest.
bench:
	@cargo xtask bench $(ROWS) $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

# Diopter next to compio, monoio, glommio, tokio-uring, tokio and fio; ARGS=--help has the options.
# Takes its device and mount away again however it ends.
peers:
	@cargo xtask peers $(ARGS)

# The golden files become what the code prints now; read the diff.
bless:
	@cargo xtask bless

# rustfmt over everything.
fmt:
	@cargo fmt --all

# Builds as the user who calls it, so root needs cargo in PATH: docs/install.md.
install:
	@cargo xtask install --prefix "$(PREFIX)" $(if $(DESTDIR),--destdir "$(abspath $(DESTDIR))")

uninstall:
	@cargo xtask uninstall --prefix "$(PREFIX)" $(if $(DESTDIR),--destdir "$(abspath $(DESTDIR))")
