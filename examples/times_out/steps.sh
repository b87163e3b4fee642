#!/bin/sh
# Works in steps and never comes to an end. It ignores the polite signal as well.
trap '' TERM
step=0
while true; do
    step=$((step + 1))
    echo "step $step"
    sleep 0.5
done
