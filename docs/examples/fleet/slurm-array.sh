#!/bin/sh
#SBATCH --job-name=drivers
#SBATCH --output=drivers-%A-%a.log
#SBATCH --time=02:00:00
#SBATCH --cpus-per-task=4
#SBATCH --requeue

# Plans and submits itself. Run "sh slurm-array.sh" in a folder that all nodes see and that has fleet.toml in it.
# A task of the array builds one Pin with the engine of its node.
set -eu

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    provision matrix fleet.toml --missing --json > plan.json
    count=$(jq '.cells | length' plan.json)
    if [ "$count" -eq 0 ]; then
        echo "The registry has every cell."
        exit 0
    fi
    exec sbatch --array="0-$((count - 1))%8" "$0"
fi

pin="${TMPDIR:-/tmp}/pin-$SLURM_ARRAY_TASK_ID.json"
jq ".cells[$SLURM_ARRAY_TASK_ID].pin" plan.json > "$pin"
reference=$(jq --raw-output ".cells[$SLURM_ARRAY_TASK_ID].reference" plan.json)
exec provision build --pin "$pin" --sign --push "$reference" \
    --key /etc/provision/fleet.key --password-file /etc/provision/fleet.password
