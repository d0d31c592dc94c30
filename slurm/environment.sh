# shellcheck shell=bash
# What a job needs around it: edit this file for your cluster; all job scripts read it.
# It runs on the first node of the allocation, in the folder that the job was submitted from.

# 1. Modules. Name those that hpcfwi was set up with, for instance:
# module purge
# module load python/3.11 openmpi/4.1 hdf5/1.14-mpi cuda/12

# 2. Python: the environment that `make setup` made.
export PATH=$PWD/.venv/bin:$PATH

# 3. Models, where the compute nodes see them. Compute nodes seldom reach the internet: run
#    `hpcfwi dataset marmousi2` once on a login node, or name a folder that has the files.
# export HPCFWI_DATA=/path/to/models

# 4. How srun tells the ranks of each other. It must speak the MPI library's protocol, or each task
#    would be an inversion of its own. `srun --mpi=list` shows what your Slurm has.
mpi_library=$(python -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])')
case $mpi_library in
    "Open MPI") mpi_plugin=pmix ;;
    *) mpi_plugin=pmi2 ;; # MPICH and its relatives: Intel MPI, Cray MPICH, MVAPICH
esac

# 5. The network, where the ranks cannot find each other over the default one, for instance:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
