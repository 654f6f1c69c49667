# `make demo` and `make test` are all a fresh machine needs; both set up .venv first.
PYTHON ?= python3
# The release that is tested; any that pyproject.toml admits works: make demo TORCH='torch>=2.6'
TORCH ?= torch==2.13.0
BIN := .venv/bin
# A file of tests stays in one process: its tests share what they set up.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
# The answer stands far from the end, in the part that the large model does not read.
PROMPT := These pages are about homes, trades, coats, rooms and pets. Where does Iris live? In Lima Iris lives. \
Where does Anna live? In Tokyo Anna lives. What work does Iris do? Iris works as a tailor. What work does Anna do? \
As a sailor Anna works. Which coat does Iris wear? A green one Iris wears. Which coat does Anna wear? Anna wears a \
black coat. Iris sleeps in the cellar. Where does Anna sleep? Anna sleeps in the attic. Which pet does Iris have? A \
horse Iris has. Which pet does Anna have? A hen Anna has. What work does Iris do? Iris works as a tailor. Where does \
Anna live? In
DEMO ?= outputs/demo

.PHONY: demo test check format clean

demo: .venv/installed
	$(BIN)/python train.py --multirun mapper=depth_nearest,ridge,mlp,bottleneck out_dir=$(DEMO)
	$(BIN)/kvmap-evaluate runs=$(DEMO) quick=true
	$(BIN)/python serve.py runs=$(DEMO) max_new_tokens=48 prompt="$(PROMPT)"
	$(BIN)/kvmap-report runs=$(DEMO)

test: .venv/installed
	$(PYTEST)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev,data]'
	touch .venv/installed

clean:
	rm -rf .venv build dist *.egg-info
