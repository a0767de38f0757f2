# Ebb for images of others, which need glibc 2.34 or newer:
#
#     COPY --from=ebb /ebb /opt/ebb
#     ENTRYPOINT ["/opt/ebb/bin/ebb", "run", "--"]
#
# docs/install.md says more. Debian 12 is the oldest that this is built on.
FROM rust:1-bookworm AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends python3
COPY . .
# Times are those of the last commit only if they are given: .git is not here.
ARG SOURCE_DATE_EPOCH
RUN make tarball \
 && mkdir /ebb \
 && tar -xzf target/packages/ebb-*-x86_64-linux.tar.gz --directory /ebb --strip-components=1

FROM scratch
COPY --from=build /ebb /ebb
