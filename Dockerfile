# An image with the command `detent`:
#   docker build -t detent .
#   docker run --rm -v "$PWD:/work" detent quantize model.onnx -o model.int8.onnx --calibration-data samples/
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates g++ make python3 python3-dev python3-venv \
  && rm -rf /var/lib/apt/lists/*
COPY . /source
WORKDIR /source
RUN make wheel

FROM python:3.11-slim-bookworm
COPY --from=build /source/dist/ /tmp/dist/
RUN pip install --no-cache-dir "$(ls /tmp/dist/detent-*.whl)[images,text]" && rm -r /tmp/dist && useradd --create-home --uid 1000 detent
USER 1000
WORKDIR /work
ENTRYPOINT ["detent"]
CMD ["--help"]
