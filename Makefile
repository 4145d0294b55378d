# Every target works on a fresh Debian 12 or Ubuntu 24.04: it installs what it needs first
# (tools/setup.sh, as root or through sudo) and builds with the presets of CMakePresets.json.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
PROMPT ?=
PRESET ?= package-static
# GPU code: for this machine's GPUs, or else one portable and one of Hopper's; a release has all.
ARCHS ?= $(shell tools/gpu/archs.sh)
ALL_ARCHS := 80,90a,100a,120f
comma := ,
cmake_archs = -DMOXIE_CUDA_ARCHS="$(subst $(comma),;,$(ARCHS))"
# As typed: dollar signs and quotes reach the program untouched by make and by the shell.
export DEMO_PROMPT = $(value PROMPT)

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## install, build, and answer prompts with the embedded model; PROMPT="..." asks that
	@tools/demo.sh build/release/moxie

build: configure-release ## install and build the release binary, build/release/moxie
	@cmake --build build/release -j $(JOBS) --target moxie

test: configure-release ## install, build, and run every test that needs no GPU
	@cmake --build build/release -j $(JOBS)
	@ctest --test-dir build/release -j $(JOBS) --output-on-failure --no-tests=error

serve: build ## install, build, and serve the embedded model on 127.0.0.1:8000
	@build/release/moxie serve

check: ## format, lint, sanitizers, fuzzers, and what runs outside: routers, deploy/, page, packages
	@tools/setup.sh build test check deploy page package package-check
	@JOBS=$(JOBS) tools/check.sh

arm: ## cross build for aarch64, and its tests under an emulator with two models of CPU
	@tools/setup.sh build test arm
	@JOBS=$(JOBS) tools/check.sh arm

format: ## rewrite the sources in the house format
	@tools/setup.sh check
	@tools/check.sh --fix-format

gpu: ARCHS = $(ALL_ARCHS)
gpu: ## the static build with CUDA: build/gpu/moxie and build/gpu/moxie_gpu_tests; ARCHS=80,90a
	@tools/setup.sh build test gpu
	@PATH="$$PATH:/usr/local/cuda/bin" cmake --preset gpu $(cmake_archs) --log-level=NOTICE >/dev/null
	@PATH="$$PATH:/usr/local/cuda/bin" cmake --build build/gpu -j $(JOBS) --target moxie moxie_gpu_tests

package: ## a .deb and a Python wheel in build/package; PRESET=gpu: with CUDA
	@tools/setup.sh build package $(if $(filter gpu,$(PRESET)),gpu)
	@JOBS=$(JOBS) tools/package.sh $(PRESET)

clean: ## remove everything built
	@rm -rf build

# The release folder serves run, build, test and serve, so that nothing is built twice.
configure-release:
	@tools/setup.sh build test
	@PATH="$$PATH:/usr/local/cuda/bin" cmake --preset release $(cmake_archs) --log-level=NOTICE >/dev/null

.PHONY: help run build test serve check arm format gpu package clean configure-release
