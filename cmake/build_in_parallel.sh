#!/bin/sh
# Builds a target with make in parallel: build_in_parallel.sh CMAKE BUILD_FOLDER JOBS TARGET
#
# make takes a file that is newer than its sources for finished. A build that was killed leaves files
# that are not: a mark tells the next build, which removes whatever was made since. After Ctrl-C there
# is no mark, because make itself removes then what it was making.
cmake=$1 build=$2 jobs=$3 target=$4
mark=$build/limbo-building

if [ -e "$mark" ]; then
  echo "The last build was killed; making again what it made"
  find "$build" \( -path '*/python-packages' -o -path '*/cuda-crt' -o -path '*/_deps' \) -prune -o \
    -type f -newer "$mark" \( -name '*.o' -o -name '*.a' -o -name '*.so' -o -perm -u+x \) \
    -exec rm -f {} +
fi
: >"$mark"
trap : INT
unset MAKEFLAGS MFLAGS MAKELEVEL
"$cmake" --build "$build" --parallel "$jobs" --target "$target"
code=$?
rm -f "$mark"
exit $code
