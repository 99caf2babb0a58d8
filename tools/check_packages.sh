#!/bin/bash
# check_packages.sh FOLDER: the packages in clean Debian roots, as root, by hand: it fetches Debian twice. FOLDER is made and can be removed afterwards.
#   make packages tarball && tools/check_packages.sh /tmp/quire_roots
# The .deb is installed, upgraded, serves as its service would, is removed and purged; the tarball's program runs where no package was added.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
build=$here/build/release
mkdir -p "$folder"
root=$folder/root bare=$folder/bare

say() { printf '== %s\n' "$*"; }
inside() { chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 bash -c "$2"; }
make_root() {
  test -e "$1/bin/sh" || debootstrap --variant=minbase bookworm "$1" ${MIRROR:-} > "$folder/debootstrap.log"
  mountpoint -q "$1/proc" || mount -t proc proc "$1/proc"
}
leave() { for place in "$root" "$bare"; do mountpoint -q "$place/proc" && umount "$place/proc" || true; done; }
trap leave EXIT

say "the tarball in a bare root"
make_root "$bare"
tar -C "$bare/opt" -xzf "$build"/quire-*-linux-"$(uname -m)".tar.gz
inside "$bare" 'for library in libstdc++ libfmt libpcre2-8 libcurl; do ls /usr/lib/*/$library.so* 2> /dev/null || true; done; time /opt/quire-*/bin/quire run -n 12 --temperature 0 "What is a KV cache?"'
inside "$bare" '/opt/quire-*/bin/quire pull hf:nobody/nothing; test $? = 1' || { echo "fetching without libcurl should fail"; exit 1; }

say "the .deb is installed"
make_root "$root"
cp "$build"/quire_*.deb "$build"/libquire1_*.deb "$root/root/"
test -e "$root/etc/resolv.conf" || cp /etc/resolv.conf "$root/etc/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/" 2> /dev/null || true
inside "$root" 'apt-get -qq update && apt-get -qq install -y --no-install-recommends /root/quire_*.deb /root/libquire1_*.deb'
inside "$root" 'quire --version; quire run -n 12 --temperature 0 "What is a KV cache?"; test -e /usr/share/man/man1/quire-serve.1* -o -e /usr/share/doc/quire'

say "upgraded: settings that were changed stay"
inside "$root" 'sed -i "s/--port 8080/--port 18089/" /etc/default/quire'
# The same package as a later version.
inside "$root" 'cd /root && rm -rf later && dpkg-deb -R quire_*.deb later && sed -i "s/^Version: .*/&+later/" later/DEBIAN/control && dpkg-deb -b later later.deb > /dev/null && dpkg -i later.deb && grep -q 18089 /etc/default/quire && dpkg-query -W quire'

say "the unit"
inside "$root" 'apt-get -qq install -y --no-install-recommends systemd curl > /dev/null && systemd-analyze verify --man=no quire.service && systemd-analyze security --offline=true quire.service | tail -n 1'
# As it would be started: its line, its settings, a user that owns nothing but its folder.
inside "$root" 'install -d -o 64999 -g 64999 /var/lib/quire; . /etc/default/quire; line=$(sed -n "s/^ExecStart=//p" /usr/lib/systemd/system/quire.service)
cd /var/lib/quire; HOME=/var/lib/quire setpriv --reuid 64999 --regid 64999 --clear-groups --no-new-privs --bounding-set=-all $(eval echo $line) & server=$!
for i in $(seq 60); do curl -sf http://127.0.0.1:18089/health > /dev/null && break; sleep 0.5; done
curl -sf http://127.0.0.1:18089/v1/completions -d "{\"prompt\":\"Once\",\"max_tokens\":4,\"temperature\":0}"; echo
grep -E "^(Uid|CapEff|NoNewPrivs)" /proc/$server/status; kill $server; wait $server'

say "removed: the settings stay; purged: nothing does"
inside "$root" 'apt-get -qq remove -y quire > /dev/null && test ! -e /usr/bin/quire && test -e /etc/default/quire && apt-get -qq purge -y quire libquire1 > /dev/null
left=$(find / -xdev \( -path /proc -o -path /root -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -iname "*quire*" -print); test -z "$left" || { echo "left behind: $left"; exit 1; }'
say "all is as it should be"
