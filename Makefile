# `make demo` and `make test` are all a fresh machine needs; both set up .venv first.
PYTHON ?= python3
# The release that is tested; any that pyproject.toml admits works: make demo TORCH='torch>=2.6'
TORCH ?= torch==2.13.0
BIN := .venv/bin
DEMO ?= outputs/demo

.PHONY: demo test check format clean

demo: .venv/installed
	$(BIN)/python train.py --multirun mapper=depth_nearest,ridge,mlp,bottleneck out_dir=$(DEMO)
	$(BIN)/python serve.py runs=$(DEMO) max_new_tokens=48 \
		prompt="These pages are about homes and meals. Where does Rosa live? In Delhi Rosa lives. Laura lives in Cairo. Nina lives in Tokyo. What does Rosa eat? Mostly beans Rosa eats. Laura eats soup. Nina eats rice. What does Nina eat? Mostly rice Nina eats. It rained all day. Where does Rosa live? In"

test: .venv/installed
	$(BIN)/python -m pytest

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

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
