#!/bin/sh
# placeholder: not a compiler. It stands where ttnn looks for one, so that a mock device opens and its ops go through their
# validation. It reads no source: asked to compile it leaves an empty object, asked to link it hands over an ELF of a few
# instructions that does nothing. Whatever passes through it says nothing about kernels.
case "$1" in --version)
  echo "placeholder: not a compiler"
  exit 0
  ;;
esac
output= dependencies= compiles=
while [ $# -gt 0 ]; do
  case "$1" in
    -o) output=$2 && shift ;;
    -MF) dependencies=$2 && shift ;;
    -c | c++-header) compiles=yes ;;
  esac
  shift
done
[ -n "$output" ] || exit 1
[ -z "$dependencies" ] || echo "$output:" >"$dependencies"
if [ -n "$compiles" ]; then
  : >"$output"
else
  core=$(basename "$(dirname "$output")")
  cp "$(dirname "$0")/placeholder-elf/$core.elf" "$output"
fi
