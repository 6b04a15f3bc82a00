#!/bin/sh
#SBATCH --job-name=drivers
#SBATCH --output=drivers-%A-%a.log
#SBATCH --time=02:00:00
#SBATCH --cpus-per-task=4
#SBATCH --requeue

# Plans and submits itself. Run "sh slurm-array.sh" in a folder that all nodes see and that has fleet.toml in it.
# A task of the array builds one cell with the engine of its node.
set -eu

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    provision matrix fleet.toml --list --missing --json > cells.json
    jq --raw-output '.cells[].id' cells.json > cells.txt
    count=$(wc -l < cells.txt)
    if [ "$count" -eq 0 ]; then
        echo "The registry has every cell."
        exit 0
    fi
    exec sbatch --array="1-${count}%8" "$0"
fi

cell=$(sed -n "${SLURM_ARRAY_TASK_ID}p" cells.txt)
exec provision matrix fleet.toml --push --cell "$cell" --state "${TMPDIR:-/tmp}/matrix"
