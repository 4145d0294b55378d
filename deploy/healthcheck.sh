#!/bin/bash
# The image's HEALTHCHECK: exit code 0 if GET /livez answers 200. It needs bash and nothing else.
#   moxie-healthcheck [PATH]
# Readiness is not health: a server that loads or drains is left alone. MOXIE_PORT names the port.
# A server with --ssl-cert does not answer plain HTTP: switch the health check off there.
set -u
exec 3<>"/dev/tcp/127.0.0.1/${MOXIE_PORT:-8000}" || exit 1
printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "${1:-/livez}" >&3
IFS=' ' read -r -t 4 -u 3 _ status _ || exit 1
[[ $status == 200 ]]
