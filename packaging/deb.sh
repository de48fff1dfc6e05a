#!/bin/sh
# Builds farmem_VERSION_amd64.deb from this tree: packaging/deb.sh [DIRECTORY]
#
# Needs cargo and dpkg-deb; prints the package's path on the last line.
set -eu
cd "$(dirname "$0")/.."
into=$(realpath "${1:-.}")

cargo build --release -p farmem-cli -p farmem-store
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
binary=$target/release/farmem
version=$("$binary" --version | cut -d' ' -f2)
maintainer="The farmem developers <farmem@example.org>"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
install -Dm755 "$binary" "$tree/usr/bin/farmem"
# Without symbols of the binary's own; the library inside it is data and stays as it is.
strip --remove-section=.comment "$tree/usr/bin/farmem" 2>/dev/null || true
# The same bytes as in the binary, which then writes no copy of its own.
install -Dm644 "$target/release/deps/libfarmem_preload.so" "$tree/usr/lib/farmem/libfarmem_preload.so"
install -Dm644 "$target/release/libfarmem_store.so" "$tree/usr/lib/farmem/libfarmem_store.so"
strip --strip-unneeded --remove-section=.comment "$tree/usr/lib/farmem/libfarmem_store.so" 2>/dev/null || true
for header in farmem farmem_store farmem_objects; do
    install -Dm644 "bindings/c/$header.h" "$tree/usr/include/$header.h"
done
for module in bindings/python/farmem/*.py; do
    install -Dm644 "$module" "$tree/usr/lib/python3/dist-packages/farmem/$(basename "$module")"
done
install -Dm644 packaging/farmem-node.service "$tree/lib/systemd/system/farmem-node.service"
install -Dm644 packaging/farmem-node.default "$tree/etc/default/farmem-node"
install -Dm644 packaging/farmem-controller.service "$tree/lib/systemd/system/farmem-controller.service"
install -Dm644 packaging/farmem-controller.default "$tree/etc/default/farmem-controller"
install -Dm644 packaging/farmem-kv.service "$tree/lib/systemd/system/farmem-kv.service"
install -Dm644 packaging/farmem-kv.default "$tree/etc/default/farmem-kv"
install -Dm644 packaging/farmem-swap.service "$tree/lib/systemd/system/farmem-swap.service"
install -Dm644 packaging/farmem-swap.default "$tree/etc/default/farmem-swap"

"$binary" manual "$tree/manual"
for page in "$tree"/manual/*.1; do
    install -Dm644 "$page" "$tree/usr/share/man/man1/$(basename "$page")"
done
gzip -9n "$tree"/usr/share/man/man1/*.1
install -Dm644 "$tree/manual/farmem.bash" "$tree/usr/share/bash-completion/completions/farmem"
install -Dm644 "$tree/manual/_farmem" "$tree/usr/share/zsh/vendor-completions/_farmem"
install -Dm644 "$tree/manual/farmem.fish" "$tree/usr/share/fish/vendor_completions.d/farmem.fish"
rm -r "$tree/manual"

for text in README.md CHANGELOG.md; do
    install -Dm644 "$text" "$tree/usr/share/doc/farmem/$text"
done
# README refers to them by these names.
find docs -type f | while read -r text; do
    install -Dm644 "$text" "$tree/usr/share/doc/farmem/$text"
done
install -Dm644 /dev/stdin "$tree/usr/share/doc/farmem/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: farmem

Files: *
Copyright: 2026 The farmem developers
License: MIT or Apache-2.0
 The full texts are LICENSE-MIT and LICENSE-APACHE in the source;
 Apache-2.0 is in /usr/share/common-licenses/Apache-2.0 as well.
COPYRIGHT
gzip -9nc >"$tree/usr/share/doc/farmem/changelog.gz" <<CHANGES
farmem ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $maintainer  $(date -Ru -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")
CHANGES
# What lintian says and is meant.
install -Dm644 /dev/stdin "$tree/usr/share/lintian/overrides/farmem" <<OVERRIDES
# It must be the bytes that are in the binary, or the binary lays down a copy of its own.
farmem: unstripped-binary-or-object [usr/lib/farmem/libfarmem_preload.so]
# A module for Python programs that give hints: who has none of those needs no Python.
farmem: python-package-missing-depends-on-python
OVERRIDES

# The C library symbols that the binary asks for decide where it runs.
libc=$(objdump -T "$binary" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9.]*\)).*/\1/p' | sort -Vu | tail -1)
mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: farmem
Version: $version
Architecture: amd64
Maintainer: $maintainer
Section: admin
Priority: optional
Depends: libc6 (>= ${libc:-2.31}), libgcc-s1
Suggests: qemu-user, valgrind
Installed-Size: $(du -sk "$tree" | cut -f1)
Description: more memory than the machine has
 farmem gives unmodified programs more memory than their machine has, by
 borrowing RAM from other machines, without root, kernel modules or special
 network cards.
CONTROL
printf '/etc/default/farmem-%s\n' controller kv node swap >"$tree/DEBIAN/conffiles"
# By these `dpkg --verify` finds a file that has changed. (Those in /etc are the user's to change.)
(cd "$tree" && find usr lib -type f | LC_ALL=C sort | xargs md5sum) >"$tree/DEBIAN/md5sums"

package=$into/farmem_${version}_amd64.deb
dpkg-deb --build --root-owner-group "$tree" "$package" >/dev/null
echo "$package"
