"""What others wrote, made into values: JSON documents, API objects, annotations. Pure."""
