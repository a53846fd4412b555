"""The models SGLang knows at once on a CPU (SGLANG_EXTERNAL_MODEL_PACKAGE); it imports others on demand."""
