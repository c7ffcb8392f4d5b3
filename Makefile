# The contract with people and CI. Every target but `help` sets up what it needs, ends with one summary line, exits
# non-zero on any failure and writes build/<target>/summary.json (`clean` removes them). What a target does stands in
# tests/tools/.
PYTHON ?= python3.11

.DEFAULT_GOAL := help
.PHONY: help demo test check molecule bed-up bed-down simulate simulate-mutants bench pressure faults build clean

help:
	@$(PYTHON) tests/tools/make.py --help

demo test check molecule bed-up bed-down simulate simulate-mutants bench pressure faults build clean:
	@$(PYTHON) tests/tools/make.py $@
