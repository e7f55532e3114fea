"""Serve a saved model over HTTP on this machine: send an image file, get the probability of every class.

python examples/serving/serve_model.py runs/my_images/erm/none-0/weights/swad.safetensors 8000
curl --data-binary @photo.jpg http://127.0.0.1:8000
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

import swad
from swad.util.images import DataError, read_image

MAX_BYTES = 50_000_000
file, port = sys.argv[1:]
model, transform, class_names = swad.testbed.load_predictor(file)


class Handler(BaseHTTPRequestHandler):
    """Predicts the image in the body of each POST."""

    def do_POST(self):
        try:
            size = int(self.headers.get("Content-Length", 0))
            if not 0 < size <= MAX_BYTES:
                raise DataError(f"the body must be an image file of 1 to {MAX_BYTES:,} bytes, got {size:,}")
            image = read_image(Path("of the request"), io.BytesIO(self.rfile.read(size)))
            with torch.inference_mode():
                probabilities = model(transform(image).unsqueeze(0)).softmax(1)[0].tolist()
            code, answer = 200, dict(zip(class_names, probabilities, strict=True))
        except ValueError as error:  # DataError is one
            code, answer = 400, {"error": str(error)}
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


with ThreadingHTTPServer(("127.0.0.1", int(port)), Handler) as server:
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
