# ruff: noqa: N802
"""Generated from open_inference.proto by `python -m fermata.clients.wire.generate`; do not edit."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Self, TypeVar

T = TypeVar("T")

DESCRIPTOR: Any

class _Message:
    DESCRIPTOR: Any
    @classmethod
    def FromString(cls, s: bytes) -> Self: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def Clear(self) -> None: ...
    def CopyFrom(self, other: Self) -> None: ...
    def HasField(self, field_name: str) -> bool: ...
    def ClearField(self, field_name: str) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...

class _Messages(list[T]):
    def add(self, **fields: Any) -> T: ...

TYPE_INVALID: int
TYPE_BOOL: int
TYPE_UINT8: int
TYPE_UINT16: int
TYPE_UINT32: int
TYPE_UINT64: int
TYPE_INT8: int
TYPE_INT16: int
TYPE_INT32: int
TYPE_INT64: int
TYPE_FP16: int
TYPE_FP32: int
TYPE_FP64: int
TYPE_STRING: int
TYPE_BF16: int

class ServerLiveRequest(_Message):
    def __init__(self) -> None: ...

class ServerLiveResponse(_Message):
    live: bool
    def __init__(
        self,
        *,
        live: bool = ...,
    ) -> None: ...

class ServerReadyRequest(_Message):
    def __init__(self) -> None: ...

class ServerReadyResponse(_Message):
    ready: bool
    def __init__(
        self,
        *,
        ready: bool = ...,
    ) -> None: ...

class ModelReadyRequest(_Message):
    name: str
    version: str
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
    ) -> None: ...

class ModelReadyResponse(_Message):
    ready: bool
    def __init__(
        self,
        *,
        ready: bool = ...,
    ) -> None: ...

class ServerMetadataRequest(_Message):
    def __init__(self) -> None: ...

class ServerMetadataResponse(_Message):
    name: str
    version: str
    extensions: list[str]
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
        extensions: Iterable[str] = ...,
    ) -> None: ...

class ModelMetadataRequest(_Message):
    name: str
    version: str
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
    ) -> None: ...

class ModelMetadataResponse(_Message):
    class TensorMetadata(_Message):
        name: str
        datatype: str
        shape: list[int]
        def __init__(
            self,
            *,
            name: str = ...,
            datatype: str = ...,
            shape: Iterable[int] = ...,
        ) -> None: ...

    name: str
    versions: list[str]
    platform: str
    inputs: _Messages[ModelMetadataResponse.TensorMetadata]
    outputs: _Messages[ModelMetadataResponse.TensorMetadata]
    def __init__(
        self,
        *,
        name: str = ...,
        versions: Iterable[str] = ...,
        platform: str = ...,
        inputs: Iterable[ModelMetadataResponse.TensorMetadata] = ...,
        outputs: Iterable[ModelMetadataResponse.TensorMetadata] = ...,
    ) -> None: ...

class InferParameter(_Message):
    bool_param: bool
    int64_param: int
    string_param: str
    double_param: float
    uint64_param: int
    def __init__(
        self,
        *,
        bool_param: bool = ...,
        int64_param: int = ...,
        string_param: str = ...,
        double_param: float = ...,
        uint64_param: int = ...,
    ) -> None: ...

class InferTensorContents(_Message):
    bool_contents: list[bool]
    int_contents: list[int]
    int64_contents: list[int]
    uint_contents: list[int]
    uint64_contents: list[int]
    fp32_contents: list[float]
    fp64_contents: list[float]
    bytes_contents: list[bytes]
    def __init__(
        self,
        *,
        bool_contents: Iterable[bool] = ...,
        int_contents: Iterable[int] = ...,
        int64_contents: Iterable[int] = ...,
        uint_contents: Iterable[int] = ...,
        uint64_contents: Iterable[int] = ...,
        fp32_contents: Iterable[float] = ...,
        fp64_contents: Iterable[float] = ...,
        bytes_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelInferRequest(_Message):
    class InferInputTensor(_Message):
        name: str
        datatype: str
        shape: list[int]
        parameters: MutableMapping[str, InferParameter]
        contents: InferTensorContents
        def __init__(
            self,
            *,
            name: str = ...,
            datatype: str = ...,
            shape: Iterable[int] = ...,
            parameters: Mapping[str, InferParameter] = ...,
            contents: InferTensorContents | None = ...,
        ) -> None: ...

    class InferRequestedOutputTensor(_Message):
        name: str
        parameters: MutableMapping[str, InferParameter]
        def __init__(
            self,
            *,
            name: str = ...,
            parameters: Mapping[str, InferParameter] = ...,
        ) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MutableMapping[str, InferParameter]
    inputs: _Messages[ModelInferRequest.InferInputTensor]
    outputs: _Messages[ModelInferRequest.InferRequestedOutputTensor]
    raw_input_contents: list[bytes]
    def __init__(
        self,
        *,
        model_name: str = ...,
        model_version: str = ...,
        id: str = ...,
        parameters: Mapping[str, InferParameter] = ...,
        inputs: Iterable[ModelInferRequest.InferInputTensor] = ...,
        outputs: Iterable[ModelInferRequest.InferRequestedOutputTensor] = ...,
        raw_input_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelInferResponse(_Message):
    class InferOutputTensor(_Message):
        name: str
        datatype: str
        shape: list[int]
        parameters: MutableMapping[str, InferParameter]
        contents: InferTensorContents
        def __init__(
            self,
            *,
            name: str = ...,
            datatype: str = ...,
            shape: Iterable[int] = ...,
            parameters: Mapping[str, InferParameter] = ...,
            contents: InferTensorContents | None = ...,
        ) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MutableMapping[str, InferParameter]
    outputs: _Messages[ModelInferResponse.InferOutputTensor]
    raw_output_contents: list[bytes]
    def __init__(
        self,
        *,
        model_name: str = ...,
        model_version: str = ...,
        id: str = ...,
        parameters: Mapping[str, InferParameter] = ...,
        outputs: Iterable[ModelInferResponse.InferOutputTensor] = ...,
        raw_output_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelStreamInferResponse(_Message):
    error_message: str
    infer_response: ModelInferResponse
    def __init__(
        self,
        *,
        error_message: str = ...,
        infer_response: ModelInferResponse | None = ...,
    ) -> None: ...

class ModelConfigRequest(_Message):
    name: str
    version: str
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
    ) -> None: ...

class ModelInput(_Message):
    name: str
    data_type: int
    dims: list[int]
    optional: bool
    def __init__(
        self,
        *,
        name: str = ...,
        data_type: int = ...,
        dims: Iterable[int] = ...,
        optional: bool = ...,
    ) -> None: ...

class ModelOutput(_Message):
    name: str
    data_type: int
    dims: list[int]
    def __init__(
        self,
        *,
        name: str = ...,
        data_type: int = ...,
        dims: Iterable[int] = ...,
    ) -> None: ...

class ModelParameter(_Message):
    string_value: str
    def __init__(
        self,
        *,
        string_value: str = ...,
    ) -> None: ...

class ModelConfig(_Message):
    name: str
    platform: str
    max_batch_size: int
    input: _Messages[ModelInput]
    output: _Messages[ModelOutput]
    parameters: MutableMapping[str, ModelParameter]
    backend: str
    def __init__(
        self,
        *,
        name: str = ...,
        platform: str = ...,
        max_batch_size: int = ...,
        input: Iterable[ModelInput] = ...,
        output: Iterable[ModelOutput] = ...,
        parameters: Mapping[str, ModelParameter] = ...,
        backend: str = ...,
    ) -> None: ...

class ModelConfigResponse(_Message):
    config: ModelConfig
    def __init__(
        self,
        *,
        config: ModelConfig | None = ...,
    ) -> None: ...

class ModelStatisticsRequest(_Message):
    name: str
    version: str
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
    ) -> None: ...

class StatisticDuration(_Message):
    count: int
    ns: int
    def __init__(
        self,
        *,
        count: int = ...,
        ns: int = ...,
    ) -> None: ...

class InferStatistics(_Message):
    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    def __init__(
        self,
        *,
        success: StatisticDuration | None = ...,
        fail: StatisticDuration | None = ...,
        queue: StatisticDuration | None = ...,
        compute_input: StatisticDuration | None = ...,
        compute_infer: StatisticDuration | None = ...,
        compute_output: StatisticDuration | None = ...,
    ) -> None: ...

class InferBatchStatistics(_Message):
    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    def __init__(
        self,
        *,
        batch_size: int = ...,
        compute_input: StatisticDuration | None = ...,
        compute_infer: StatisticDuration | None = ...,
        compute_output: StatisticDuration | None = ...,
    ) -> None: ...

class ModelStatistics(_Message):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: _Messages[InferBatchStatistics]
    def __init__(
        self,
        *,
        name: str = ...,
        version: str = ...,
        last_inference: int = ...,
        inference_count: int = ...,
        execution_count: int = ...,
        inference_stats: InferStatistics | None = ...,
        batch_stats: Iterable[InferBatchStatistics] = ...,
    ) -> None: ...

class ModelStatisticsResponse(_Message):
    model_stats: _Messages[ModelStatistics]
    def __init__(
        self,
        *,
        model_stats: Iterable[ModelStatistics] = ...,
    ) -> None: ...

class ModelRepositoryParameter(_Message):
    bool_param: bool
    int64_param: int
    string_param: str
    bytes_param: bytes
    def __init__(
        self,
        *,
        bool_param: bool = ...,
        int64_param: int = ...,
        string_param: str = ...,
        bytes_param: bytes = ...,
    ) -> None: ...

class RepositoryIndexRequest(_Message):
    repository_name: str
    ready: bool
    def __init__(
        self,
        *,
        repository_name: str = ...,
        ready: bool = ...,
    ) -> None: ...

class RepositoryIndexResponse(_Message):
    class ModelIndex(_Message):
        name: str
        version: str
        state: str
        reason: str
        def __init__(
            self,
            *,
            name: str = ...,
            version: str = ...,
            state: str = ...,
            reason: str = ...,
        ) -> None: ...

    models: _Messages[RepositoryIndexResponse.ModelIndex]
    def __init__(
        self,
        *,
        models: Iterable[RepositoryIndexResponse.ModelIndex] = ...,
    ) -> None: ...

class RepositoryModelLoadRequest(_Message):
    repository_name: str
    model_name: str
    parameters: MutableMapping[str, ModelRepositoryParameter]
    def __init__(
        self,
        *,
        repository_name: str = ...,
        model_name: str = ...,
        parameters: Mapping[str, ModelRepositoryParameter] = ...,
    ) -> None: ...

class RepositoryModelLoadResponse(_Message):
    def __init__(self) -> None: ...

class RepositoryModelUnloadRequest(_Message):
    repository_name: str
    model_name: str
    parameters: MutableMapping[str, ModelRepositoryParameter]
    def __init__(
        self,
        *,
        repository_name: str = ...,
        model_name: str = ...,
        parameters: Mapping[str, ModelRepositoryParameter] = ...,
    ) -> None: ...

class RepositoryModelUnloadResponse(_Message):
    def __init__(self) -> None: ...

class SystemSharedMemoryStatusRequest(_Message):
    name: str
    def __init__(
        self,
        *,
        name: str = ...,
    ) -> None: ...

class SystemSharedMemoryStatusResponse(_Message):
    class RegionStatus(_Message):
        name: str
        key: str
        offset: int
        byte_size: int
        def __init__(
            self,
            *,
            name: str = ...,
            key: str = ...,
            offset: int = ...,
            byte_size: int = ...,
        ) -> None: ...

    regions: MutableMapping[str, SystemSharedMemoryStatusResponse.RegionStatus]
    def __init__(
        self,
        *,
        regions: Mapping[str, SystemSharedMemoryStatusResponse.RegionStatus] = ...,
    ) -> None: ...

class SystemSharedMemoryRegisterRequest(_Message):
    name: str
    key: str
    offset: int
    byte_size: int
    def __init__(
        self,
        *,
        name: str = ...,
        key: str = ...,
        offset: int = ...,
        byte_size: int = ...,
    ) -> None: ...

class SystemSharedMemoryRegisterResponse(_Message):
    def __init__(self) -> None: ...

class SystemSharedMemoryUnregisterRequest(_Message):
    name: str
    def __init__(
        self,
        *,
        name: str = ...,
    ) -> None: ...

class SystemSharedMemoryUnregisterResponse(_Message):
    def __init__(self) -> None: ...

class CudaSharedMemoryStatusRequest(_Message):
    name: str
    def __init__(
        self,
        *,
        name: str = ...,
    ) -> None: ...

class CudaSharedMemoryStatusResponse(_Message):
    class RegionStatus(_Message):
        name: str
        device_id: int
        byte_size: int
        def __init__(
            self,
            *,
            name: str = ...,
            device_id: int = ...,
            byte_size: int = ...,
        ) -> None: ...

    regions: MutableMapping[str, CudaSharedMemoryStatusResponse.RegionStatus]
    def __init__(
        self,
        *,
        regions: Mapping[str, CudaSharedMemoryStatusResponse.RegionStatus] = ...,
    ) -> None: ...

class CudaSharedMemoryRegisterRequest(_Message):
    name: str
    raw_handle: bytes
    device_id: int
    byte_size: int
    def __init__(
        self,
        *,
        name: str = ...,
        raw_handle: bytes = ...,
        device_id: int = ...,
        byte_size: int = ...,
    ) -> None: ...

class CudaSharedMemoryRegisterResponse(_Message):
    def __init__(self) -> None: ...

class CudaSharedMemoryUnregisterRequest(_Message):
    name: str
    def __init__(
        self,
        *,
        name: str = ...,
    ) -> None: ...

class CudaSharedMemoryUnregisterResponse(_Message):
    def __init__(self) -> None: ...

class TraceSettingRequest(_Message):
    class SettingValue(_Message):
        value: list[str]
        def __init__(
            self,
            *,
            value: Iterable[str] = ...,
        ) -> None: ...

    settings: MutableMapping[str, TraceSettingRequest.SettingValue]
    model_name: str
    def __init__(
        self,
        *,
        settings: Mapping[str, TraceSettingRequest.SettingValue] = ...,
        model_name: str = ...,
    ) -> None: ...

class TraceSettingResponse(_Message):
    class SettingValue(_Message):
        value: list[str]
        def __init__(
            self,
            *,
            value: Iterable[str] = ...,
        ) -> None: ...

    settings: MutableMapping[str, TraceSettingResponse.SettingValue]
    def __init__(
        self,
        *,
        settings: Mapping[str, TraceSettingResponse.SettingValue] = ...,
    ) -> None: ...

class LogSettingsRequest(_Message):
    class SettingValue(_Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(
            self,
            *,
            bool_param: bool = ...,
            uint32_param: int = ...,
            string_param: str = ...,
        ) -> None: ...

    settings: MutableMapping[str, LogSettingsRequest.SettingValue]
    def __init__(
        self,
        *,
        settings: Mapping[str, LogSettingsRequest.SettingValue] = ...,
    ) -> None: ...

class LogSettingsResponse(_Message):
    class SettingValue(_Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(
            self,
            *,
            bool_param: bool = ...,
            uint32_param: int = ...,
            string_param: str = ...,
        ) -> None: ...

    settings: MutableMapping[str, LogSettingsResponse.SettingValue]
    def __init__(
        self,
        *,
        settings: Mapping[str, LogSettingsResponse.SettingValue] = ...,
    ) -> None: ...
