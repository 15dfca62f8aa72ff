# make demo: the first result. make test: the tests. Both set themselves up in .venv first.
PYTHON ?= python3

demo: .venv/ready
	PATH="$(CURDIR)/.venv/bin:$$PATH" OUT=$${OUT:-runs/demo} SHOW=3 bash recipes/ltc.sh

test: .venv/ready
	.venv/bin/python -m pytest -q tests

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet -r requirements.txt
	touch .venv/ready

.PHONY: demo test
