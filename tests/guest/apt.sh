# shellcheck shell=bash
# Fetches Debian packages with a private apt that installs nothing and needs no privilege. To be sourced (fetch.sh, kernel.sh).
#
#   WARPROW_DEBIAN_MIRROR  a Debian mirror, where the machine's own apt sources name none

skip() {
    echo "guest tier skipped: $*" >&2
    exit 77
}
fail() {
    echo "guest: $*" >&2
    exit 1
}

for tool in apt-get apt-cache dpkg-deb flock sha256sum; do
    command -v "$tool" >/dev/null || skip "$tool is missing (the guest is fetched with Debian's own tools)"
done

# The mirror is whatever this machine already fetches Debian from, of any release: mirrors carry them all.
mirror() {
    local uri release keyring
    # shellcheck disable=SC2016 # the placeholders are apt's
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(SIGNED_BY)' 'Created-By: Packages' 2>>"$log" |
        while read -r uri release keyring; do
            case $release in bookworm | trixie | forky | sid | oldstable | stable | testing | unstable) ;; *) continue ;; esac
            case $keyring in \$*) keyring= ;; esac
            echo "$uri $keyring"
            break
        done
}

# private_apt FOLDER SUITE...: an apt of those suites that keeps everything in FOLDER/apt, its words in FOLDER/log. Gives `private`,
# which runs a command of it, and fetches the lists.
private_apt() {
    local work=$1 uri keyring pocket
    shift
    log=$work/log apt_conf=$work/apt/conf
    mkdir -p "$work"/apt/{state/lists/partial,cache/archives/partial}
    read -r uri keyring <<<"${WARPROW_DEBIAN_MIRROR:-$(mirror)}" || true
    [ -n "$uri" ] || skip "no Debian mirror in this machine's apt sources (set WARPROW_DEBIAN_MIRROR)"
    if [ -z "$keyring" ] && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    fi
    for pocket in "$@"; do
        echo "deb [arch=amd64${keyring:+ signed-by=$keyring}] $uri $pocket main"
    done >"$work/apt/sources.list"

    # A private apt that believes nothing is installed, so that QEMU's libraries come too, the C library among them.
    : >"$work/apt/status"
    cat >"$work/apt/conf" <<CONF
#clear APT::Architectures;
#clear APT::Update;
#clear DPkg;
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
CONF
    private apt-get update || offline "the Debian mirror of this machine's apt sources does not answer"
}
private() { "$1" -c "$apt_conf" "${@:2}" >>"$log" 2>&1; }
offline() { skip "$1 (details: $log)"; }
