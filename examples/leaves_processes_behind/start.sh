#!/bin/sh
# Starts three processes that want to outlive it, each in another way, and ends successfully.
sleep 3600 &
nohup sleep 3600 > /dev/null 2>&1 &
setsid sh -c 'trap "" TERM HUP; exec sleep 3600' &
echo "three servers started"
