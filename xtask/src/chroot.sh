# Run by `cargo xtask clean-chroot` in a mount namespace of its own; see chroot.rs.
set -eu
root=$1 repository=$2 suite=$3 mirror=$4 cargo=$5 rustup=$6 packages=$7 targets=$8

mount --make-rprivate /
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >&2

# What this machine's apt needs to reach its mirror (a proxy, say) holds in the chroot too.
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true

# A clone of what is committed: a file that was forgotten is missed here.
mkdir -p "$root/src" "$root/opt/cargo-host" "$root/opt/rustup" "$root/opt/cargo"
git -c safe.directory='*' clone --quiet --no-hardlinks "$repository" "$root/src/varve"

mount --bind "$cargo" "$root/opt/cargo-host"
mount -o remount,bind,ro "$root/opt/cargo-host"
mount --bind "$rustup" "$root/opt/rustup"
mount -o remount,bind,ro "$root/opt/rustup"
cp -a "$cargo/registry" "$root/opt/cargo/" 2>/dev/null || true
if [ -f "$cargo/config.toml" ]; then cp "$cargo/config.toml" "$root/opt/cargo/"; fi

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"

# So do the authorities that this machine trusts beside Debian's own (an inspecting proxy's, say).
trust=
if ls /usr/local/share/ca-certificates/*.crt >/dev/null 2>&1; then
    cp /etc/ssl/certs/ca-certificates.crt "$root/opt/host-ca.crt"
    trust="NODE_EXTRA_CA_CERTS=/opt/host-ca.crt SSL_CERT_FILE=/opt/host-ca.crt PIP_CERT=/opt/host-ca.crt"
fi

exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    $trust \
    PATH=/opt/cargo-host/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    RUSTUP_HOME=/opt/rustup CARGO_HOME=/opt/cargo \
    make -C /src/varve $targets
