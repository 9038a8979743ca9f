#!/usr/bin/env bash
# Makes sure the browser tests have a browser: $CHROMIUM, an installed one, Debian's package, or Playwright's own.
set -euo pipefail

[ -n "${CHROMIUM:-}" ] && exit 0
command -v chromium chromium-browser google-chrome >/dev/null && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "No browser found: installing Debian's Chromium."
    apt-get update -qq && apt-get install -y -qq chromium >/dev/null && exit 0
fi
echo "No browser found: letting Playwright fetch its own."
.venv/bin/playwright install chromium
