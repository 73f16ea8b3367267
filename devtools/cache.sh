# Sourced by the scripts find-*: what these build is in ~/.cache/mcagent/WHAT, each version in a directory by the digest
# of what it is made from, so that clones of several revisions use the cache side by side.
# shellcheck shell=bash

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mcagent

# digest: print the name of a version, of what standard input has
digest() { sha256sum | cut -c1-16; }

# use DIRECTORY: note that a version is used today; fails when it is not there
use() {
    [ -d "$1" ] || return 1
    touch "$1/.used" 2>/dev/null || true # another user's cache serves, too
}

# lock BASE: keep other runs from building in BASE until this script ends
lock() {
    mkdir -p "$1"
    exec 9>"$1/.lock"
    flock 9
}

# publish FROM TO: let a directory be a version, in one step, from another file system, too
publish() {
    rm -rf "$2.new"
    mv "$1" "$2.new"
    touch "$2.new/.used"
    mv -T "$2.new" "$2"
}

# tidy BASE DAYS: remove versions that no clone has used for so long, and what an interrupted `publish` left; under `lock`
tidy() {
    local version
    rm -rf "$1"/*.new
    for version in "$1"/*/; do
        [[ $version =~ [0-9a-f]{16}/$ ]] || continue
        [ -e "$version.used" ] || touch "$version.used" # an older revision made it
        [ -z "$(find "$version.used" -mtime "+$2")" ] || rm -rf "$version"
    done
}
