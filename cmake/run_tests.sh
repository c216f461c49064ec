#!/bin/sh
# Runs all tests and then says what was skipped and what failed, also when something has failed:
# run_tests.sh CTEST BUILD_FOLDER JOBS [REPORT_COMMAND...]
ctest=$1 build=$2 jobs=$3
shift 3

"$ctest" --test-dir "$build" --output-on-failure --no-tests=error \
  --output-junit Testing/ctest.xml -j "$jobs"
code=$?
if [ $# -gt 0 ]; then "$@" "$build"; fi
exit $code
