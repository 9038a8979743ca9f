#!/usr/bin/env bash
# Makes sure the browser tests have a browser: $CHROMIUM, Debian's headless shell, an installed one, or Playwright's own.
# The headless shell takes about two thirds of the CPU time of the whole browser.
set -euo pipefail

[ -n "${CHROMIUM:-}" ] && exit 0
command -v chromium-headless-shell >/dev/null && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "Installing Debian's headless Chromium for the browser tests."
    apt-get update -qq && apt-get install -y -qq chromium-headless-shell >/dev/null && exit 0
fi
command -v chromium chromium-browser google-chrome >/dev/null && exit 0
echo "No browser found: letting Playwright fetch its own."
.venv/bin/playwright install chromium
