#!/bin/sh
# Enables unstable options for rustdoc only. If the variable were set for all of cargo, build scripts that depend on it
# would run again, and most dependencies would be rebuilt.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
