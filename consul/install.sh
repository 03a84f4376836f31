#!/bin/sh
# Puts a `consul` program at DIRECTORY/consul without root and without changing the machine.
#
#   consul/install.sh DIRECTORY
#
# Does nothing but link it if `consul` is on PATH. Otherwise it takes Debian's package from the
# apt sources of this machine and unpacks it; nothing is installed. Debian releases after 11
# have no such package: there, fetch a release from its vendor and put it on PATH.
set -eu

[ $# -eq 1 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
mkdir -p "$1"
cd "$1"

if [ -x consul ]; then
  :
elif found=$(command -v consul); then
  ln -s "$found" consul
elif command -v apt-get >/dev/null && [ -n "$(apt-cache madison consul 2>/dev/null)" ]; then
  apt-get download consul
  dpkg-deb -x consul_*.deb unpacked
  ln -s unpacked/usr/bin/consul consul
else
  echo "install.sh: no consul on PATH and none in this machine's apt sources" >&2
  exit 3
fi
./consul version | head -n 1
