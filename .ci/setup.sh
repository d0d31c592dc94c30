#!/usr/bin/env bash
# Create a .venv in which `mpirun hpcfwi` works, on any machine. Called by `make setup`.
#
# 1. Install the system's MPI and parallel HDF5 with apt, if that is allowed.
# 2. Create a virtual environment, which uses an installed torch if there is one.
# 3. Install mpi4py for the installed MPI, or else MPICH from the package index.
# 4. Build h5py against an installed parallel HDF5, or else install the serial wheel.
# 5. Install hpcfwi in editable mode, with the packages for its tests and checks.
#
# Every step first checks if it is already done, so that running the script again is quick.
#
# Variables:
#   SYSTEM_PACKAGES=no   do not install system packages
#   PYTHON               the Python interpreter (default: the first one of version 3.11 or newer)
#   TORCH                the pip requirement if torch is not installed (default: torch==2.13.0)
#   HDF5_DIR             the folder of a parallel HDF5 (default: Debian's)
#   MPIRUN               the launcher and its flags (from the Makefile)
#   TRY_MPIRUN=no        do not launch processes, for login nodes that forbid it
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=${TORCH:-torch==2.13.0}
MPIRUN=${MPIRUN:-mpirun}
DEBIAN_PACKAGES=(gcc libc6-dev make python3 python3-dev python3-venv
                 openmpi-bin libopenmpi-dev libhdf5-openmpi-dev)
log=build/setup.log

say() { printf '%s\n' "$*"; }
give_up() { say "$*" >&2; exit 1; }

# attempt SENTENCE COMMAND...: run the command with its output in the log, and print the sentence and
# the seconds that it took.
attempt() {
    local sentence=$1 start=$SECONDS status=0
    shift
    printf '%s ... ' "$sentence"
    printf '\n== %s\n' "$sentence" >> "$log"
    "$@" >> "$log" 2>&1 < /dev/null || status=$?
    ((status == 0)) && say "$((SECONDS - start)) s" || say "failed"
    return "$status"
}

# The same for a command that must succeed: exit if it fails.
step() {
    attempt "$@" || give_up "The end of $log:"$'\n'"$(tail -n 15 "$log")"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo -n "$@"; fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
}

refresh_and_install() {
    apt_get update
    apt_get install -y --no-install-recommends "${missing[@]}"
}

system_packages() {
    missing=()
    command -v dpkg > /dev/null || return 0
    for package in "${DEBIAN_PACKAGES[@]}"; do
        [[ $(dpkg-query -W -f '${Status}' "$package" 2>&1) == "install ok installed" ]] \
            || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if [[ ${SYSTEM_PACKAGES:-yes} == no ]] || ! as_root true 2> /dev/null; then
        say "Not installed: ${missing[*]}. This account does not install system packages;" \
            "continuing with the package index."
    else
        attempt "Installing ${missing[*]}" refresh_and_install \
            || say "apt-get failed (see $log); continuing with the package index."
    fi
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            command -v "$candidate"
            return
        fi
    done
    give_up "hpcfwi needs Python 3.11 or newer, and ${PYTHON:-python3} is older or missing:" \
            "install one (on Debian: apt-get install python3 python3-venv) or set PYTHON."
}

# Return true if a torch that hpcfwi supports is installed for this interpreter.
has_torch() {
    "$1" - << 'END'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    sys.exit(tuple(int(part) for part in version("torch").split(".")[:2]) < (2, 4))
except PackageNotFoundError:
    sys.exit(1)
END
}

virtual_environment() {
    [[ -x .venv/bin/pip ]] && return
    local python options=()
    python=$(find_python)
    if has_torch "$python"; then
        options=(--system-site-packages)
    fi
    step "Making .venv with $("$python" --version)" "$python" -m venv --clear "${options[@]}" .venv
}

pip_install() {
    pip install --disable-pip-version-check "$@"
}

# Return true if two processes can communicate through mpi4py or, if none may be launched, if mpi4py
# finds an MPI library.
two_ranks_meet() {
    if [[ ${TRY_MPIRUN:-yes} == no ]]; then
        python -c "$without_mpi; from mpi4py import MPI" >> "$log" 2>&1
        return
    fi
    timeout 60 $MPIRUN -n 2 python -c \
        'from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.allreduce(1) != 2)' >> "$log" 2>&1
}

message_passing() {
    two_ranks_meet && return
    if [[ -n $system_mpicc ]]; then
        attempt "Building mpi4py against $system_mpicc" \
            pip_install --force-reinstall --no-cache-dir --no-deps --no-binary=mpi4py mpi4py \
            && two_ranks_meet && return
        say "Two processes cannot communicate through the MPI of $system_mpicc (see $log):" \
            "another MPI is installed in .venv." \
            "If this machine forbids mpirun: rm -r .venv, and TRY_MPIRUN=no make setup."
    fi
    step "Installing MPICH from the package index, because no usable MPI was found" pip_install mpich
    two_ranks_meet \
        || give_up "Two processes cannot communicate through the MPI of" \
                   "$(command -v "${MPIRUN%% *}"); the end of $log has the reason."
}

# Python code that prevents imports from starting MPI, because the set-up is not a rank.
without_mpi='import mpi4py; mpi4py.rc(initialize=False, finalize=False)'

h5py_is_parallel() {
    python -c "$without_mpi"'; import h5py; raise SystemExit(not h5py.get_config().mpi)' 2> /dev/null
}

# Build h5py in this environment, because in an isolated one it would first compile another mpi4py.
# Without the configuration of setuptools, its modules would be compiled on one core.
build_h5py() {
    printf '[build_ext]\nparallel = %d\n' "$(nproc)" > build/setuptools.cfg
    DIST_EXTRA_CONFIG=$PWD/build/setuptools.cfg \
        HDF5_MPI=ON H5PY_SETUP_REQUIRES=0 CC=mpicc CFLAGS='-O1 -g0' HDF5_DIR=$1 \
        pip_install --force-reinstall --no-deps --no-cache-dir --no-build-isolation \
        --no-binary=h5py 'h5py==3.16.0'
}

parallel_files() {
    h5py_is_parallel && return
    local hdf5=${HDF5_DIR:-$(compgen -G '/usr/lib/*/hdf5/openmpi' || true)}
    if [[ -z $hdf5 || -z $system_mpicc ]]; then
        say "No parallel HDF5 was found: h5py is serial, and rank 0 will write all files."
    else
        attempt "Building h5py for parallel HDF5 (one to three minutes)" build_h5py "$hdf5" \
            || say "Continuing with the serial h5py; $log has the reason."
    fi
}

mkdir -p build
: > "$log"
system_packages
system_mpicc=$(command -v mpicc || true)
virtual_environment
export PATH=$PWD/.venv/bin:$PATH
step "Installing build tools" \
    pip_install numpy mpi4py cython pkgconfig packaging 'setuptools>=77' wheel
message_passing
parallel_files
has_torch python || step "Installing $TORCH" pip_install "$TORCH"
step "Installing hpcfwi" pip_install --no-build-isolation --editable '.[test,lint]'
summary=$(python -c "$without_mpi"'
import h5py, torch
from mpi4py import MPI
vendor, release = MPI.get_vendor()
mpi = " ".join([vendor, ".".join(map(str, release))])
files = "parallel" if h5py.get_config().mpi else "serial"
print(f"{mpi}, {files} HDF5 {h5py.version.hdf5_version}, torch {torch.__version__}")')
say "Ready after $SECONDS s: $summary."
[[ ${TRY_MPIRUN:-yes} != no ]] || say "No mpirun was tried. In a job, this should say 2 ranks:" \
    "$MPIRUN -n 2 hpcfwi run inputs/small.toml"
